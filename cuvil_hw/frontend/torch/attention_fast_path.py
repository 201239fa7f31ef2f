"""What PyTorch's fused attention layers compute, written with ordinary operators.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call them in inference, and Dynamo traces them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """torch's fused attention: query, key and value of shape (batch, length, width).

    Args:
        weight: (3·width, width), those of query, key and value one after another.
        mask: not zero where nothing is looked at, so that a float mask is no bias.
        mask_type: shape of the mask; 0: (length, length), 1: (batch, length), 2: that of the scores.
    """
    batch, length = query.shape[:2]

    def part(x: Tensor, i: int) -> Tensor:
        rows = slice(i * width, (i + 1) * width)
        return F.linear(x, weight[rows], bias[rows]).view(batch, x.shape[1], heads, -1).transpose(1, 2)

    q, k, v = part(query, 0), part(key, 1), part(value, 2)
    scores = (q / math.sqrt(width // heads)) @ k.transpose(-1, -2)
    if mask is not None:
        hidden = mask.reshape(batch, 1, 1, -1) if mask_type == 1 else mask
        scores = scores.masked_fill(hidden.bool(), -math.inf)
    weights = scores.softmax(-1)
    result = F.linear((weights @ v).transpose(1, 2).reshape(batch, length, width), out_weight, out_bias)
    if not need_weights:
        return result, None
    return result, weights.mean(1) if average_weights else weights


def encoder_layer(
    x: Tensor,
    width: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    gelu: bool,
    norm_first: bool,
    eps: float,
    norm1_weight: Tensor,
    norm1_bias: Tensor,
    norm2_weight: Tensor,
    norm2_bias: Tensor,
    wide_weight: Tensor,
    wide_bias: Tensor,
    narrow_weight: Tensor,
    narrow_bias: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Attention and MLP with their sums and norms; `norm_first`: norms before, else after each."""

    def norm1(y: Tensor) -> Tensor:
        return F.layer_norm(y, (width,), norm1_weight, norm1_bias, eps)

    def norm2(y: Tensor) -> Tensor:
        return F.layer_norm(y, (width,), norm2_weight, norm2_bias, eps)

    def attend(y: Tensor) -> Tensor:
        given = (width, heads, weight, bias, out_weight, out_bias, mask, False, True, mask_type)
        return multi_head_attention(y, y, y, *given)[0]

    def feed(y: Tensor) -> Tensor:
        y = F.linear(y, wide_weight, wide_bias)
        return F.linear(F.gelu(y) if gelu else F.relu(y), narrow_weight, narrow_bias)

    if norm_first:
        x = x + attend(norm1(x))
        return x + feed(norm2(x))
    x = norm1(x + attend(x))
    return norm2(x + feed(x))


FUSED: dict[Any, Callable[..., Any]] = {
    torch._native_multi_head_attention: multi_head_attention,
    torch._transformer_encoder_layer_fwd: encoder_layer,
}

__all__ = ["FUSED", "encoder_layer", "multi_head_attention"]

"""Resize: every mode and coordinate transformation at sizes that aren't whole, against ONNX Runtime and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cuvil_hw.frontend.onnx import load_onnx
from tests.support.onnx_oracle import floats, ints, node_model, run, runtime

TRANSFORMS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
              "tf_crop_and_resize")  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# Extents and scales: results of one element, ties between two pixels, extents that stay.
SIZES = [((5, 5), (0.5, 0.5)), ((5, 6), (0.6, 0.37)), ((4, 4), (2.0, 3.0)), ((5, 5), (0.2, 0.3)), ((9, 3), (0.34, 1.0)),
         ((6, 11), (1.04, 0.5)), ((11, 7), (2.4, 0.6)), ((7, 8), (0.58, 1.9))]  # fmt: skip
CROP = np.float32([0, 0, 0.1, 0.2, 1, 1, 0.9, 0.7])


def agree(x: np.ndarray, factors: tuple[float, float], by_size: bool, atol: float = 1e-5, **attributes: Any) -> None:
    roi = CROP if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize" else None
    extents = [max(1, int(np.float32(s) * np.float32(f))) for s, f in zip(x.shape[2:], factors, strict=True)]
    operands = [x, roi, None, np.int64([1, 2, *extents])] if by_size else [x, roi, np.float32([1, 1, *factors])]
    model = node_model("Resize", operands, attributes, 19, {1, 2, 3})
    want, got = runtime(model, {"x0": x})[0], run(load_onnx(model), {"x0": x})[0]
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=atol, err_msg=f"{x.shape} {factors} {attributes}")


@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_every_mode(transform: str, by_size: bool) -> None:
    kinds: list[dict[str, Any]] = [{"mode": "nearest", "nearest_mode": m} for m in NEAREST]
    kinds += [{"mode": "linear"}, {"mode": "cubic"}, {"mode": "cubic", "exclude_outside": 1}]
    if transform != "tf_crop_and_resize":
        kinds += [{"mode": m, "antialias": 1} for m in ("linear", "cubic")]
    for spatial, factors in SIZES:
        for kind in kinds:
            agree(floats(1, 2, *spatial), factors, by_size, coordinate_transformation_mode=transform,
                  extrapolation_value=7.0, **kind)  # fmt: skip


@pytest.mark.parametrize("factors", [(0.5, 0.5), (1.7, 0.45)])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_scales_as_in_pytorch(mode: str, corners: bool, factors: tuple[float, float]) -> None:
    x = floats(1, 2, 5, 5)
    transform = "align_corners" if corners else "pytorch_half_pixel"
    model = node_model("Resize", [x, None, np.float32([1, 1, *factors])],
                       {"mode": mode, "coordinate_transformation_mode": transform}, 13, {2})  # fmt: skip
    want = torch.nn.functional.interpolate(
        torch.from_numpy(x), scale_factor=factors, mode={"linear": "bilinear", "cubic": "bicubic"}[mode],
        align_corners=corners, recompute_scale_factor=False,
    )  # fmt: skip
    np.testing.assert_allclose(run(load_onnx(model), {"x0": x})[0], want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_integers_are_truncated(dtype: type) -> None:
    """Sums end up beside a whole number now and then: one apart at most."""
    for spatial, factors in SIZES[:4]:
        x = ints(1, 2, *spatial, lo=0 if dtype is np.uint8 else -128, hi=127, dtype=dtype)
        agree(x, factors, False, 1.0, mode="linear", coordinate_transformation_mode="half_pixel")

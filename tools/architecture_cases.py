"""Small random models of many architectures: transformers' configuration classes, and PyTorch's own layers.

Widths are a few dozen, layers one or two; weights are random. Nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

Inputs = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """`route`: how users compile it: "accelerate" (with "whole=False" where Python decides on values), "torch.compile"
    (with Dynamo's setting "allow_rnn" for recurrent layers) or "compile". `make`: the model and its inputs by name of
    forward's parameter."""

    name: str
    route: str
    make: Callable[[], tuple[nn.Module, dict[str, Any]]]


def ints(*shape: int, high: int = 60, low: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def settled(model: nn.Module) -> nn.Module:
    """Weights large enough to matter: transformers starts with a deviation of 0.02, and zeros."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                p.add_(torch.randn(p.shape, generator=rng) * 0.1)
    return model.eval()


# What most of transformers' configurations are told; a name that one doesn't know does no harm.
TEXT: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 32, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IMAGE: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32,
    "patch_size": 8, "num_labels": 5,
}  # fmt: skip
AUDIO: dict[str, Any] = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 4), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0,
}  # fmt: skip
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 64, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
MOE: dict[str, Any] = {
    **TEXT, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1,
}  # fmt: skip


def words() -> dict[str, Any]:
    return {"input_ids": ints(2, 7), "attention_mask": torch.tensor([[1] * 7, [1] * 5 + [0] * 2])}


def tokens() -> dict[str, Any]:
    return {"input_ids": ints(1, 7)}


def image(size: int = 32) -> Inputs:
    return lambda: {"pixel_values": floats(1, 3, size, size)}


def pairs() -> dict[str, Any]:
    return {"input_ids": ints(1, 7), "decoder_input_ids": ints(1, 4, seed=1)}


def sound() -> dict[str, Any]:
    return {"input_values": floats(1, 800)}


def hf(
    model: str, base: Mapping[str, Any], inputs: Inputs, config: str = "", note: str = "", route: str = "accelerate",
    **changes: Any,
) -> Case:  # fmt: skip
    """A model of transformers: `config` names its configuration, else the class's own is taken; `note`: what tells two
    of one class apart."""

    def make() -> tuple[nn.Module, dict[str, Any]]:
        kind = getattr(transformers, model)
        chosen = getattr(transformers, config) if config else kind.config_class
        torch.manual_seed(0)
        return settled(kind(chosen(**{**base, **changes}))), inputs()

    return Case(f"{model}, {note}" if note else model, route, make)


def _detr(config: str, **changes: Any) -> Callable[[], Any]:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage4"] if config != "DeformableDetrConfig" else ["stage2", "stage3", "stage4"],
    )  # fmt: skip
    return lambda: getattr(transformers, config)(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=backbone, num_queries=4, d_model=32,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_labels=3,
        **{"encoder_layers": 1, "decoder_layers": 1, **changes},
    )  # fmt: skip


def _rt_detr() -> Any:
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    return transformers.RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=16, encoder_in_channels=[8, 8, 8], encoder_ffn_dim=32,
        encoder_attention_heads=2, d_model=16, num_queries=4, decoder_layers=1, decoder_attention_heads=2,
        decoder_ffn_dim=32, decoder_in_channels=[16, 16, 16], num_labels=3, hidden_expansion=0.5,
    )  # fmt: skip


def built(model: str, config: Callable[[], Any], inputs: Inputs) -> Case:
    def make() -> tuple[nn.Module, dict[str, Any]]:
        torch.manual_seed(0)
        return settled(getattr(transformers, model)(config())), inputs()

    return Case(model, "accelerate", make)


def _clip(kind: str, **changes: Any) -> Callable[[], Any]:
    sizes = {k: v for k, v in TEXT.items() if k != "num_key_value_heads"}
    return lambda: getattr(transformers, kind)(
        text_config={**sizes, **changes}, vision_config={**IMAGE, **changes}, projection_dim=16
    )


def _backboned(kind: str, backbone: str, features: dict[str, Any], **changes: Any) -> Callable[[], Any]:
    def make() -> Any:
        inner = getattr(transformers, backbone)(**{**IMAGE, **features})
        return getattr(transformers, kind)(backbone_config=inner, **changes)

    return make


def _llava() -> Any:
    return transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**IMAGE),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=63,
        vision_feature_layer=-1,
    )


def _unchecked(case: Case) -> Case:
    """Without transformers' checks of values, in the process that runs it."""

    def make() -> tuple[nn.Module, dict[str, Any]]:
        os.environ["TRANSFORMERS_DISABLE_TORCH_CHECK"] = "1"
        return case.make()

    return Case(f"{case.name}, unchecked", case.route, make)


def _blip2() -> Any:
    return transformers.Blip2Config(
        vision_config=dict(IMAGE),
        qformer_config={**TEXT, "encoder_hidden_size": 16, "cross_attention_frequency": 1},
        text_config={**TEXT, "model_type": "opt", "ffn_dim": 32, "word_embed_proj_dim": 16},
        num_query_tokens=4,
        image_token_index=63,
    )


def _llava_inputs() -> dict[str, Any]:
    ids = ints(1, 22)
    ids[0, 2:18] = 63
    return {"input_ids": ids, "pixel_values": floats(1, 3, 32, 32)}


def _blip2_inputs() -> dict[str, Any]:
    ids = ints(1, 8)
    ids[0, :4] = 63
    return {"input_ids": ids, "pixel_values": floats(1, 3, 32, 32)}


def _sam_inputs() -> dict[str, Any]:
    return {"pixel_values": floats(1, 3, 32, 32), "input_points": torch.tensor([[[[5.0, 9.0]]]])}


def _sam() -> Any:
    return transformers.SamConfig(
        vision_config={**IMAGE, "output_channels": 16, "window_size": 2, "global_attn_indexes": [1], "mlp_dim": 32,
                       "num_pos_feats": 8},
        prompt_encoder_config={"hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
        mask_decoder_config={"hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                             "iou_head_hidden_dim": 16},
    )  # fmt: skip


MLA = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "num_key_value_heads": 2,
}  # fmt: skip
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
STAGES = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_labels": 5, "image_size": 32}

HF: tuple[Case, ...] = (
    # decoders
    *(hf(f"{n}ForCausalLM", TEXT, words) for n in (
        "Llama", "Qwen2", "Qwen3", "Gemma", "Olmo", "Olmo2", "Granite", "Cohere", "StableLm", "Starcoder2",
        "Phi", "Phi3", "GPTNeoX", "BioGpt", "Bloom", "Falcon",
    )),
    hf("FalconForCausalLM", TEXT, words, note="alibi", alibi=True),
    hf("MistralForCausalLM", TEXT, words, sliding_window=4),
    hf("Gemma2ForCausalLM", TEXT, words, head_dim=8, sliding_window=4),
    hf("Gemma3ForCausalLM", TEXT, words, "Gemma3TextConfig", head_dim=8, sliding_window=4),
    hf("GPT2LMHeadModel", {}, words, vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32),
    hf("GPTNeoForCausalLM", {}, words, vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, window_size=4,
       attention_types=[[["global", "local"], 1]], max_position_embeddings=32),
    hf("GPTJForCausalLM", {}, words, vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=32, rotary_dim=4),
    hf("CodeGenForCausalLM", {}, words, vocab_size=64, n_embd=16, n_layer=1, n_head=4, n_positions=32, rotary_dim=4),
    hf("OPTForCausalLM", TEXT, words, ffn_dim=32, word_embed_proj_dim=16),
    hf("MptForCausalLM", {}, words, vocab_size=64, d_model=16, n_heads=2, n_layers=1, max_seq_len=32),
    hf("XGLMForCausalLM", SEQ2SEQ, words, num_layers=1, attention_heads=2, ffn_dim=32),
    # mixtures of experts
    hf("MixtralForCausalLM", MOE, words), hf("Qwen2MoeForCausalLM", MOE, words), hf("Qwen3MoeForCausalLM", MOE, words),
    hf("OlmoeForCausalLM", MOE, words), hf("PhimoeForCausalLM", MOE, words), hf("GraniteMoeForCausalLM", MOE, words),
    hf("GptOssForCausalLM", MOE, words, head_dim=8), hf("DeepseekV2ForCausalLM", {**MOE, **MLA}, words),
    hf("DeepseekV3ForCausalLM", {**MOE, **MLA}, words),
    hf("SwitchTransformersModel", SEQ2SEQ, lambda: {**words(), "decoder_input_ids": ints(2, 4, seed=1),
       "use_cache": False}, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=2, num_experts=4,
       num_sparse_encoder_layers=1, num_sparse_decoder_layers=1),
    # states instead of attention
    hf("MambaForCausalLM", TEXT, tokens, state_size=4, time_step_rank=4),
    hf("Mamba2ForCausalLM", TEXT, tokens, state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=4),
    hf("RecurrentGemmaForCausalLM", TEXT, tokens, lru_width=16, attention_window_size=4, num_hidden_layers=3),
    hf("RwkvForCausalLM", TEXT, tokens, attention_hidden_size=16),
    # encoders
    *(hf(f"{n}Model", TEXT, words) for n in (
        "Bert", "Roberta", "Electra", "MPNet", "Deberta", "RoFormer", "Nystromformer", "Esm", "LayoutLM", "Ernie",
    )),
    hf("DebertaV2Model", TEXT, words, relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=4),
    hf("AlbertModel", TEXT, words, embedding_size=8),
    hf("DistilBertModel", {}, words, vocab_size=64, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    hf("ModernBertModel", TEXT, words, local_attention=4, cls_token_id=1, sep_token_id=2),
    hf("XLNetModel", {}, words, vocab_size=64, d_model=16, n_layer=1, n_head=2, d_inner=32),
    hf("FunnelModel", {}, words, vocab_size=64, d_model=16, n_head=2, d_head=8, d_inner=32, block_sizes=[1, 1]),
    hf("LongformerModel", TEXT, lambda: {"input_ids": ints(1, 8)}, route="accelerate, whole=False",
       attention_window=[4, 4]),
    hf("BigBirdModel", TEXT, words, attention_type="original_full"),
    hf("FNetModel", TEXT, tokens), hf("CanineModel", TEXT, lambda: {"input_ids": ints(1, 16)},
       local_transformer_stride=8, num_hash_buckets=32, downsampling_rate=4),
    hf("ConvBertModel", TEXT, words, embedding_size=16, conv_kernel_size=3), hf("SqueezeBertModel", TEXT, words,
       embedding_size=16, q_groups=2, k_groups=2, v_groups=2, post_attention_groups=1, intermediate_groups=2,
       output_groups=2),
    hf("MobileBertModel", TEXT, words, embedding_size=16, intra_bottleneck_size=8),
    # from sequence to sequence
    *(hf(f"{n}Model", SEQ2SEQ, pairs) for n in ("Bart", "Pegasus", "Marian", "M2M100", "MBart")),
    hf("T5Model", {}, pairs, vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2),
    hf("WhisperForConditionalGeneration", SEQ2SEQ, lambda: {"input_features": floats(1, 16, 40),
       "decoder_input_ids": ints(1, 4)}, num_mel_bins=16, max_source_positions=20, max_target_positions=16,
       suppress_tokens=None, begin_suppress_tokens=None),
    # images
    *(hf(f"{n}Model", IMAGE, image()) for n in ("ViT", "DeiT", "Beit", "Dinov2", "ViTMSN", "SiglipVision")),
    hf("SwinModel", SWIN, image()), hf("Swinv2Model", SWIN, image()), hf("ConvNextModel", STAGES, image()),
    hf("ConvNextV2Model", STAGES, image()), hf("ResNetModel", STAGES, image(), embedding_size=8, layer_type="basic"),
    hf("RegNetModel", STAGES, image(), embedding_size=8, groups_width=8), hf("PoolFormerModel", STAGES, image(64)),
    hf("MobileNetV2Model", {}, image(), depth_multiplier=0.25, image_size=32), hf("MobileViTModel", {}, image(64),
       image_size=64, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 8, 16, 16, 16], num_attention_heads=2),
    hf("EfficientNetModel", {}, image(), image_size=32, width_coefficient=0.1, depth_coefficient=0.2, hidden_dim=128),
    hf("CvtModel", {}, image(), embed_dim=[8, 8, 16], num_heads=[1, 1, 2], depth=[1, 2, 3]),
    hf("SegformerForSemanticSegmentation", {}, image(), hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1],
       num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=16, num_labels=3),
    hf("GLPNForDepthEstimation", {}, image(64), hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1],
       num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=16),
    hf("DPTForDepthEstimation", IMAGE, image(), num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3],
       neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8),
    built("DepthAnythingForDepthEstimation", _backboned("DepthAnythingConfig", "Dinov2Config",
          {"out_indices": [1, 2], "reshape_hidden_states": False, "apply_layernorm": True}, patch_size=8,
          reassemble_hidden_size=16, neck_hidden_sizes=[8, 8], reassemble_factors=[2, 1], fusion_hidden_size=8,
          head_hidden_size=8), image()),
    built("VitPoseForPoseEstimation", _backboned("VitPoseConfig", "VitPoseBackboneConfig",
          {"image_size": [32, 32], "patch_size": [8, 8], "out_indices": [2]}, num_labels=3), image()),
    built("DetrForObjectDetection", _detr("DetrConfig"), image(64)),
    built("ConditionalDetrForObjectDetection", _detr("ConditionalDetrConfig"), image(64)),
    built("DeformableDetrForObjectDetection", _detr("DeformableDetrConfig", num_feature_levels=3, decoder_layers=2),
          image(64)),
    built("RTDetrForObjectDetection", _rt_detr, image(64)),
    hf("YolosForObjectDetection", IMAGE, image(), image_size=[32, 32], num_detection_tokens=4),
    built("SamModel", _sam, _sam_inputs),
    # sound, several modes, series
    hf("Wav2Vec2ForCTC", AUDIO, sound), hf("HubertForCTC", AUDIO, sound), hf("WavLMModel", AUDIO, sound),
    hf("Wav2Vec2ForSequenceClassification", AUDIO, sound, use_weighted_layer_sum=True, classifier_proj_size=8),
    hf("ASTModel", IMAGE, lambda: {"input_values": floats(1, 32, 16)}, max_length=32, num_mel_bins=16,
       patch_size=8, frequency_stride=4, time_stride=4),
    built("CLIPModel", _clip("CLIPConfig"), lambda: {**words(), **image()()}),
    built("SiglipModel", _clip("SiglipConfig"), lambda: {**tokens(), **image()()}),
    built("CLIPSegForImageSegmentation", lambda: transformers.CLIPSegConfig(text_config=dict(TEXT),
          vision_config=dict(IMAGE), projection_dim=16, extract_layers=[0, 1], reduce_dim=8,
          decoder_num_attention_heads=2, decoder_intermediate_size=16), lambda: {**tokens(), **image()()}),
    built("Blip2ForConditionalGeneration", _blip2, _blip2_inputs),
    built("LlavaForConditionalGeneration", _llava, _llava_inputs),
    _unchecked(built("LlavaForConditionalGeneration", _llava, _llava_inputs)),
    hf("ViltModel", {**TEXT, **IMAGE}, lambda: {"input_ids": ints(1, 5), "pixel_values": floats(1, 3, 32, 32),
       "pixel_mask": torch.ones(1, 32, 32, dtype=torch.long)}, max_image_length=-1, route="accelerate, whole=False"),
    hf("PatchTSTModel", {}, lambda: {"past_values": floats(1, 32, 2)}, num_input_channels=2, context_length=32,
       patch_length=4, patch_stride=4, d_model=16, num_attention_heads=2, num_hidden_layers=1, ffn_dim=32),
)  # fmt: skip

__all__ = ["HF", "Case", "floats", "ints", "settled"]

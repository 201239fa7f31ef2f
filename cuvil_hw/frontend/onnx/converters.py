"""The table of supported operators: (domain, operator) → converter. Domain "" is ONNX' own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cuvil_hw.frontend.onnx.attention import ATTENTION
from cuvil_hw.frontend.onnx.dynamic import DYNAMIC, MICROSOFT_DYNAMIC
from cuvil_hw.frontend.onnx.einsum import einsum
from cuvil_hw.frontend.onnx.elementwise import ELEMENTWISE
from cuvil_hw.frontend.onnx.fused import FUSED
from cuvil_hw.frontend.onnx.index import INDEX
from cuvil_hw.frontend.onnx.linear import LINEAR
from cuvil_hw.frontend.onnx.ml import ML
from cuvil_hw.frontend.onnx.nbits import NBITS
from cuvil_hw.frontend.onnx.node import Converter
from cuvil_hw.frontend.onnx.qlinear import QLINEAR, QOPERATOR
from cuvil_hw.frontend.onnx.qonnx import DOMAINS, QONNX
from cuvil_hw.frontend.onnx.quantized import QUANTIZED
from cuvil_hw.frontend.onnx.recurrent import RECURRENT, recurrent
from cuvil_hw.frontend.onnx.reduce import REDUCE
from cuvil_hw.frontend.onnx.resize import RESIZE
from cuvil_hw.frontend.onnx.shape import SHAPE
from cuvil_hw.frontend.onnx.signal import SIGNAL
from cuvil_hw.frontend.onnx.window import WINDOW

TABLES = (DYNAMIC, ELEMENTWISE, INDEX, LINEAR, QOPERATOR, QUANTIZED, RECURRENT, REDUCE, RESIZE, SHAPE, SIGNAL, WINDOW)
# What ONNX Runtime's quantizer and optimizer write.
MICROSOFT = {**QUANTIZED, **QLINEAR, **MICROSOFT_DYNAMIC, **NBITS, **FUSED, **ATTENTION}
CONVERTERS: Mapping[tuple[str, str], Converter] = MappingProxyType(
    {
        **{("", op): f for table in TABLES for op, f in table.items()},
        ("", "Einsum"): einsum,
        **{("ai.onnx.ml", op): f for op, f in ML.items()},
        **{(domain, op): f for domain in DOMAINS for op, f in QONNX.items()},
        **{("com.microsoft", op): f for op, f in MICROSOFT.items()},
        ("com.microsoft", "DynamicQuantizeLSTM"): recurrent,
        ("com.microsoft", "Gelu"): ELEMENTWISE["Gelu"],
    }
)


def refusal_reason(domain: str, op_type: str) -> str:
    """Why an operator without converter is refused."""
    if domain:
        return f"operators of domain {domain!r} are not supported" if domain != "com.microsoft" else "not supported"
    if op_type in ("NonZero", "Unique", "NonMaxSuppression"):
        return "the shape of its result depends on values known only at run time"
    if op_type.startswith(("Sequence", "SplitToSequence", "ConcatFromSequence", "Optional")):
        return "sequences and optionals are not supported"
    if op_type.startswith(("String", "Regex", "Tfidf")):
        return "text is not supported"
    if op_type.startswith("Random") or op_type in ("Bernoulli", "Multinomial"):
        return "random numbers are not supported"
    return "not supported"

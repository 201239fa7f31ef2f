"""Converters of ai.onnx.ml's numeric operators, to which scikit-learn pipelines are exported."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from cuvil_hw import dtypes
from cuvil_hw import ops as e
from cuvil_hw.frontend.onnx.elementwise import cast_to
from cuvil_hw.frontend.onnx.node import DTYPES, Array, Converter, OnnxNode, Value, decode
from cuvil_hw.frontend.onnx.trees import classifier, ensemble, features, labels, regressor, transformed, two_classes


def scaler(n: OnnxNode, version: int) -> Value:
    """(x - offset) · scale, in f32."""
    x = cast_to(n, n[0], "f32")
    offset, scale = (np.asarray(n.attr(name, d), np.float32) for name, d in (("offset", (0.0,)), ("scale", (1.0,))))
    return n.binary(e.Mul(), n.binary(e.Sub(), x, n.const(offset, "f32")), n.const(scale, "f32"))


def normalizer(n: OnnxNode, version: int) -> Value:
    """Rows divided by their largest magnitude, the sum of their magnitudes or their Euclidean length."""
    x, norm = cast_to(n, n[0], "f32"), n.attr("norm", "MAX")
    axis = (x.rank - 1,)
    if norm == "MAX":
        size = n.emit(e.ReduceMax(axis, True), n.emit(e.Abs(), x))
    elif norm == "L1":
        size = n.emit(e.ReduceSum(axis, True), n.emit(e.Abs(), x))
    elif norm == "L2":
        size = n.emit(e.Sqrt(), n.emit(e.ReduceSum(axis, True), n.emit(e.Mul(), x, x)))
    else:
        n.refuse(f"norm {norm!r}")
    size = n.emit(e.Where(), n.emit(e.Equal(), size, n.like(0, size)), n.like(1, size), size)
    return n.binary(e.Div(), x, size)


def binarizer(n: OnnxNode, version: int) -> Value:
    x = n[0]
    return cast_to(n, n.emit(e.Greater(), x, n.like(n.number("threshold", 0.0), x)), x.dtype)


def array_feature_extractor(n: OnnxNode, version: int) -> Value:
    """Columns of the last dimension; a vector counts as one row."""
    x, at = n[0], n.reshape(n[1], (n[1].type.size,))
    x = n.reshape(x, (1, x.shape[0])) if x.rank == 1 else x
    return n.emit(e.Gather(x.rank - 1), x, at)


def label_encoder(n: OnnxNode, version: int) -> Value:
    """Numbers to numbers, one comparison for each key; NaN is found by NaN."""
    keys, values = _table(n, "keys"), _table(n, "values")
    if keys is None or values is None or len(keys[0]) != len(values[0]):
        n.refuse("text keys or values, or lists of different lengths")
    x = n[0]
    if x.dtype != keys[1]:
        n.refuse(f"keys are {keys[1]}, the operand is {x.dtype}")
    y = n.expand(n.const(_default(n, values[1]), values[1]), x.shape)
    for key, value in zip(reversed(keys[0]), reversed(values[0]), strict=True):
        if key != key:
            hit = n.emit(e.IsNan(), x)
        else:
            hit = n.emit(e.Equal(), x, n.expand(n.const(key, x.dtype), x.shape))
        y = n.emit(e.Where(), hit, n.expand(n.const(value, values[1]), x.shape), y)
    return y


def _table(n: OnnxNode, name: str) -> tuple[Array, str] | None:
    tensor = n.attr(f"{name}_tensor")
    if tensor is not None:
        if tensor.data_type not in DTYPES:
            return None
        array, dtype = decode(tensor)
        return array.reshape(-1), dtype
    for suffix, dtype in (("floats", "f32"), ("int64s", "i64")):
        found = n.attr(f"{name}_{suffix}")
        if found is not None:
            return np.asarray(found, dtypes.to_numpy(dtype)), dtype
    return None


def _default(n: OnnxNode, dtype: str) -> float | int:
    tensor = n.attr("default_tensor")
    if tensor is not None:
        found: float | int = decode(tensor)[0].reshape(-1)[0].item()
        return found
    return n.number("default_float", -0.0) if dtypes.is_float(dtype) else n.integer("default_int64", -1)


def linear_regressor(n: OnnxNode, version: int) -> Value:
    x, targets = cast_to(n, features(n), "f32"), n.integer("targets", 1)
    return transformed(n, _linear(n, x, targets), n.attr("post_transform", "NONE"))


def _linear(n: OnnxNode, x: Value, rows: int) -> Value:
    weights = np.asarray(n.attr("coefficients", ()), np.float32)
    if weights.size != rows * x.shape[1]:
        n.refuse(f"{weights.size} coefficients for {rows} rows of {x.shape[1]} features")
    y = n.emit(e.Linear(), x, n.const(weights.reshape(rows, -1), "f32"))
    bias = np.asarray(n.attr("intercepts", ()), np.float32)
    return n.binary(e.Add(), y, n.const(bias, "f32")) if bias.size else y


def linear_classifier(n: OnnxNode, version: int) -> tuple[Value, Value]:
    """(label, scores)"""
    x, names, how = cast_to(n, features(n), "f32"), labels(n), n.attr("post_transform", "NONE")
    rows = len(n.attr("coefficients", ())) // x.shape[1]
    y = _linear(n, x, rows)
    if rows == 1 and len(names) == 2:
        return two_classes(n, y, names, how, positive=False)
    if rows != len(names):
        n.refuse(f"{rows} rows of coefficients for {len(names)} classes")
    label = n.emit(e.Gather(0), n.const(names, "i64"), n.emit(e.ArgMax(1), y))
    return label, transformed(n, y, how)


ML: Mapping[str, Converter] = MappingProxyType(
    {
        "TreeEnsemble": ensemble,
        "TreeEnsembleRegressor": regressor,
        "TreeEnsembleClassifier": classifier,
        "Scaler": scaler,
        "Normalizer": normalizer,
        "Binarizer": binarizer,
        "ArrayFeatureExtractor": array_feature_extractor,
        "LabelEncoder": label_encoder,
        "LinearRegressor": linear_regressor,
        "LinearClassifier": linear_classifier,
    }
)

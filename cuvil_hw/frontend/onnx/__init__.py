"""ONNX models → level1 programs."""

from cuvil_hw.frontend.onnx.importer import load_onnx

__all__ = ["load_onnx"]

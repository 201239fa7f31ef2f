"""Streaming designs as SystemVerilog."""

from cuvil_hw.adapters.streaming.rtl.emit import emit

__all__ = ["emit"]

"""All level1 ops; importing this package fills the registry."""

from cuvil_hw.ops import integer, nn
from cuvil_hw.ops.base import Op, registry

__all__ = ["Op", "integer", "nn", "registry"]

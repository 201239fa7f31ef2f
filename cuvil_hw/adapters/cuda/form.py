"""How a kernel runs on a GPU: an output per thread, an output per warp, or tiles of a sum of products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.func import FuncOp

from cuvil_hw import dtypes
from cuvil_hw.adapters.cuda import cost
from cuvil_hw.adapters.cuda.arch import STATIC_SHARED_BYTES, WARP
from cuvil_hw.adapters.cuda.threads import COMBINE, lower_threads, lower_warps
from cuvil_hw.adapters.cuda.tile import Sizes, lower_tile
from cuvil_hw.adapters.sequential.product import (
    MatrixProduct,
    Product,
    contiguous,
    dot4_fits,
    matrix_product,
    product_of,
)
from cuvil_hw.expr.nodes import Load
from cuvil_hw.expr.traverse import walk
from cuvil_hw.lower.emit import Tables
from cuvil_hw.schedule.kernel import Buffer, Kernel, KernelGraph
from cuvil_hw.schedule.space import Estimate
from cuvil_hw.target.profile import Profile

THREADS = (256, 128)
WARP_OUTPUTS = 4096  # with more outputs, threads fill the machine without help
LEAST = 8  # rows, columns and steps that make a tile
# rows, columns, k, rows and columns of each thread
TILES = ((128, 128, 16, 8, 8), (128, 128, 32, 8, 8), (64, 64, 16, 4, 4), (64, 64, 32, 4, 4), (32, 64, 32, 2, 4),
         (32, 32, 32, 2, 2), (16, 64, 32, 1, 4), (16, 16, 32, 1, 1))  # fmt: skip


@dataclass(frozen=True, slots=True)
class CudaForm(ABC):
    kernel: Kernel = field(compare=False, repr=False)

    @abstractmethod
    def describe(self) -> str: ...

    @abstractmethod
    def work(self) -> cost.Work: ...

    @abstractmethod
    def emit(self, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int) -> FuncOp:
        """The function @symbol(inputs…, output, number of samples)."""

    @abstractmethod
    def grid(self) -> dict[str, Any]:
        """Fields of a LaunchRecord: threads of a block, and how many blocks."""

    def estimate(self, profile: Profile) -> Estimate:
        return cost.estimate(self.kernel, self.work(), profile)


@dataclass(frozen=True, slots=True)
class PerThread(CudaForm):
    """One output per thread."""

    threads: int

    def describe(self) -> str:
        return f"form=thread; threads={self.threads}"

    def work(self) -> cost.Work:
        return cost.threads(self.kernel, self.threads)

    def emit(self, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int) -> FuncOp:
        return lower_threads(self.kernel, self.threads, buffers, tables, symbol, layer)

    def grid(self) -> dict[str, Any]:
        return _per_output(self.kernel, self.threads, self.threads)


def _per_output(kernel: Kernel, threads: int, tile: int) -> dict[str, Any]:
    """The grid of blocks that make `tile` outputs each."""
    return {"threads": threads, "rows": kernel.type.size, "tile": tile, "times": 1, "sampled": True}


@dataclass(frozen=True, slots=True)
class PerWarp(CudaForm):
    """One output per warp; `words`: the sum of products that it reads in words of four bytes."""

    threads: int
    words: Product | None = field(compare=False, repr=False)

    def describe(self) -> str:
        return f"form=warp; threads={self.threads}{'; dot4=yes' if self.words else ''}"

    def work(self) -> cost.Work:
        return cost.warps(self.kernel, self.threads, self.words is not None)

    def emit(self, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int) -> FuncOp:
        return lower_warps(self.kernel, self.threads, self.words, buffers, tables, symbol, layer)

    def grid(self) -> dict[str, Any]:
        return _per_output(self.kernel, self.threads, self.threads // WARP)


@dataclass(frozen=True, slots=True)
class Tiled(CudaForm):
    """A sum of products by tiles in shared memory."""

    shape: MatrixProduct = field(compare=False, repr=False)
    sizes: Sizes

    def describe(self) -> str:
        s = self.sizes
        block = f"block rows={s.rows} columns={s.columns} rows@shared columns@shared"
        thread = f"thread rows={s.row_each} columns={s.column_each}"
        return f"{block}; serial k={s.k}; {thread}; form=tile{'; dot4=yes' if s.dot4 else ''}"

    def work(self) -> cost.Work:
        return cost.tiles(self.kernel, self.shape, self.sizes)

    def emit(self, buffers: Mapping[str, Buffer], tables: Tables, symbol: str, layer: int) -> FuncOp:
        return lower_tile(self.kernel, self.shape, self.sizes, buffers, tables, symbol, layer)

    def grid(self) -> dict[str, Any]:
        shape, s = self.shape, self.sizes
        sides = [(shape.rows, s.rows), (shape.columns, s.columns)]
        if shape.columns.sampled:
            sides.reverse()
        (side, tile), (other, size) = sides
        times = -(-other.extent // size) * prod(i.extent for i in shape.batch)
        return {"threads": s.threads, "rows": side.extent, "tile": tile, "times": times, "sampled": not shape.sampled}


def forms(kernel: Kernel, graph: KernelGraph) -> Iterator[CudaForm]:
    """One output per thread always; one per warp for long reductions; tiles for sums of products."""
    for threads in THREADS:
        yield PerThread(kernel, threads)
    reduce, product = kernel.reduce, product_of(kernel)
    steps = prod(i.extent for i in kernel.reduction_iters)
    if reduce is not None and reduce.kind in COMBINE and steps >= WARP and 0 < kernel.type.size <= WARP_OUTPUTS:
        yield PerWarp(kernel, THREADS[0], product if product is not None and contiguous(product, kernel) else None)
    shape = matrix_product(kernel, product) if product is not None else None
    if shape is not None and _worthwhile(shape) and _may_pad(shape.product, graph):
        dot4 = dot4_fits(shape.product)
        for sizes in (Sizes(*tile, dot4) for tile in TILES):
            # Tiles are declared in the source, which may take 48 KiB of a block's shared memory, whatever the part has.
            if cost.shared_bytes(shape, sizes) <= STATIC_SHARED_BYTES:
                yield Tiled(kernel, shape, sizes)


def _worthwhile(shape: MatrixProduct) -> bool:
    """Whether staged values are used several times (a depthwise convolution's aren't)."""
    fixed = [side.extent for side in (shape.rows, shape.columns) if not side.sampled]
    return shape.steps >= LEAST and all(extent >= LEAST for extent in fixed)


def _may_pad(product: Product, graph: KernelGraph) -> bool:
    """A tile multiplies what lies under padding by 0, which is no product of floats unless the other factor is finite:
    so that one must be a constant, and its elements finite."""
    if not product.guards or not dtypes.is_float(product.reduce.dtype):
        return True
    loads = [e for e in walk(product.right.value) if isinstance(e, Load)]
    return not product.right.batched and all(
        np.isfinite(dtypes.numbers(graph.constant(load.buffer))).all() for load in loads
    )

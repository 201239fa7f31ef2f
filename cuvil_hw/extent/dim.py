"""`Dim`: an extent whose size each call chooses, within bounds."""

from __future__ import annotations

from dataclasses import dataclass

from cuvil_hw.errors import CuvilError
from cuvil_hw.extent.polynomial import Polynomial, Whole, symbol, whole

LARGEST = 1 << 31  # of any size: element counts then fit 64 bits with a few dimensions


@dataclass(frozen=True)
class Dim:
    """An open extent called `name`, from `min` to `max` (None: no upper bound). `sizes`: sizes to compile ahead.

    In shapes, arithmetic with other dimensions and integers is allowed: `2 * S`, `S + 1`, `H // 2`, `B * T`. Two Dims
    with the same name are the same dimension. Raises CuvilError.
    """

    name: str
    min: int = 1
    max: int | None = None
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier() or self.name in ("and", "or", "not"):
            raise CuvilError(f"Dim({self.name!r}): the name must be an identifier, such as B or height")
        bounds = [self.min] if self.max is None else [self.min, self.max]
        if not all(type(b) is int for b in (*bounds, *self.sizes)):
            raise CuvilError(f"Dim({self.name!r}): min, max and sizes must be integers")
        if self.min < 0 or (self.max is not None and self.max < self.min) or max(bounds) > LARGEST:
            raise CuvilError(f"{self}: bounds must be 0 ≤ min ≤ max ≤ 2^31")
        object.__setattr__(self, "sizes", tuple(sorted(set(self.sizes))))
        if outside := [s for s in self.sizes if not self.holds(s)]:
            raise CuvilError(f"{self}: size {outside[0]} is outside the bounds")

    def holds(self, size: int) -> bool:
        return self.min <= size and (self.max is None or size <= self.max)

    @property
    def expr(self) -> Polynomial:
        return symbol(self.name)

    def __str__(self) -> str:
        return f"Dim({self.name!r}, min={self.min}, max={self.max})"

    def __add__(self, other: Extent) -> Open:
        return Open.of(self) + other

    def __radd__(self, other: int) -> Open:
        return Open.of(self) + other

    def __sub__(self, other: Extent) -> Open:
        return Open.of(self) - other

    def __rsub__(self, other: int) -> Open:
        return Open.of(other) - self

    def __mul__(self, other: Extent) -> Open:
        return Open.of(self) * other

    def __rmul__(self, other: int) -> Open:
        return Open.of(self) * other

    def __floordiv__(self, other: Extent) -> Open:
        return Open.of(self) // other

    def __mod__(self, other: Extent) -> Open:
        return Open.of(self) % other


@dataclass(frozen=True)
class Open:
    """An extent computed from dimensions: made by arithmetic with them."""

    expr: Polynomial
    dims: tuple[Dim, ...]

    @staticmethod
    def of(value: Extent) -> Open:
        """Raises CuvilError for what is no extent."""
        match value:
            case Open():
                return value
            case Dim():
                return Open(value.expr, (value,))
            case bool():
                pass
            case int():
                return Open(whole(value), ())
        raise CuvilError(f"{value!r} can't be an extent; give an int, a cuvil.Dim or arithmetic of them")

    def _with(self, other: Extent, expr: Polynomial) -> Open:
        return Open(expr, tuple(dict.fromkeys((*self.dims, *Open.of(other).dims))))

    def __add__(self, other: Extent) -> Open:
        return self._with(other, self.expr + Open.of(other).expr)

    def __radd__(self, other: int) -> Open:
        return self + other

    def __sub__(self, other: Extent) -> Open:
        return self._with(other, self.expr - Open.of(other).expr)

    def __rsub__(self, other: int) -> Open:
        return Open.of(other) - self

    def __mul__(self, other: Extent) -> Open:
        return self._with(other, self.expr * Open.of(other).expr)

    def __rmul__(self, other: int) -> Open:
        return self * other

    def __floordiv__(self, other: Extent) -> Open:
        return self._with(other, self.expr // _nonzero(other))

    def __mod__(self, other: Extent) -> Open:
        return self._with(other, self.expr % _nonzero(other))

    def __str__(self) -> str:
        return str(self.expr)


def _nonzero(value: Extent) -> Whole:
    expr = Open.of(value).expr
    if expr.constant == 0:
        raise CuvilError("an extent is divided by 0")
    return expr


Extent = Dim | Open | int

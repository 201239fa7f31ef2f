"""One level2 op without side effects → one piece of C text.

The ops compute modulo 2^bits; C computes in promoted types and arbitrary-width types widen. So a piece may be right
only modulo 2^bits (`Code.exact` is False); it is cast where a consumer needs the value itself, and not where wrapping
comes by itself (a sum inside a sum, an assignment).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IndexType, IntegerAttr, IntegerType, VectorType
from xdsl.ir import Attribute, Operation

from cuvil_hw import dtypes
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.level2 import SaturateOp
from cuvil_hw.render.c.bitcast import bitcast
from cuvil_hw.render.c.lang import Lang
from cuvil_hw.render.c.operators import FLOAT, HELPERS, LOGIC, RING, UNSIGNED_HELPERS
from cuvil_hw.render.c.scalar import (
    AND,
    BOOL,
    CHOICE,
    EQUAL,
    INT,
    LESS,
    PRIMARY,
    SHIFT,
    TIMES,
    UNARY,
    Code,
    CType,
    at,
    cast,
    container_bits,
    declared,
    inexact,
    integer,
    real,
    spelled,
    value_type,
    width,
)  # fmt: skip
from cuvil_hw.render.c.vectors import vector_op


@dataclass
class Expressions:
    """Renders ops for one language; `helpers` collects the functions that the text calls, in order of first use."""

    lang: Lang
    helpers: dict[str, str] = field(default_factory=dict)

    def op(self, op: Operation, args: Sequence[Code]) -> Code:
        """The op applied to the texts of its operands. Raises CuvilError for an op outside level2."""
        made = self._op(op, args)
        return replace(made, reads=frozenset().union(made.reads, *(a.reads for a in args)))

    def constant(self, op: arith.ConstantOp) -> Code:
        value, type = op.value, op.result.type
        if isinstance(value, FloatAttr) and isinstance(type, AnyFloat):
            return real(value.value.data, type.bitwidth)
        if isinstance(value, IntegerAttr):
            if type == IntegerType(1):
                return Code("true" if value.value.data else "false", PRIMARY, BOOL, literal=int(bool(value.value.data)))
            return integer(value.value.data, width(type))
        raise CuvilError(f"constant {op} is no scalar")

    def exact(self, code: Code, type: Attribute) -> Code:
        """`code` with the value of level2 type `type`."""
        return code if code.exact else cast(code, value_type(type, self.lang), self.lang)

    def as_type(self, code: Code, type: Attribute) -> Code:
        """`code` with the very type that variables of `type` have."""
        target = value_type(type, self.lang)
        return code if code.exact and code.type == target else cast(code, target, self.lang)

    def choose(self, cond: Code, then: Code, other: Code, type: Attribute) -> Code:
        """`cond ? then : other`."""
        kind = value_type(type, self.lang)
        if (kind.kind == "arbitrary" and then.type != other.type) or kind == CType("float", 16):
            then, other = self.as_type(then, type), self.as_type(other, type)
        elif not isinstance(type, AnyFloat | VectorType) and kind.kind != "arbitrary":
            then, other = self._wide(then, other, type)
        text = f"{at(cond, CHOICE + 1)} ? {at(then, CHOICE + 1)} : {at(other, CHOICE)}"
        kind = then.type if then.type == other.type else self._promoted(then.type, other.type)
        return Code(text, CHOICE, kind, then.exact and other.exact, cond.reads | then.reads | other.reads)

    # -- dispatch ----------------------------------------------------------------------------------------------------

    def _op(self, op: Operation, args: Sequence[Code]) -> Code:
        name, result = op.name, op.results[0].type
        types = [v.type for v in op.operands]
        exact = [self.exact(a, t) for a, t in zip(args, types, strict=True)]
        if isinstance(result, VectorType):
            return vector_op(op, exact, self.lang, self.helpers)
        if name in self.lang.calls:
            dim = op.properties.get("dimension")
            text = self.lang.calls[name].format(*(a.text for a in exact), dim=getattr(dim, "data", ""))
            return Code(text, PRIMARY, value_type(result, self.lang))
        if name in LOGIC and result == IntegerType(1):
            return self._logic(name, *exact)
        if name in RING:
            sign, prec = RING[name]
            if self.lang.wrap and sign in "+-*" and not self._index(result) and width(result) in (32, 64):
                args = [self._modular(a, result) for a in args]
            return self.ring(sign, prec, args[0], args[1], result)
        if name in FLOAT:
            sign, prec = FLOAT[name]
            return self._float_binary(sign, prec, exact[0], exact[1], result)
        if name in HELPERS and (name.endswith("f") or result != IntegerType(1)):
            return self._call_helper(name, self.lang.helpers.get(name, HELPERS[name]), exact, result)
        if name in UNSIGNED_HELPERS:
            # Where any width has a type, the call converts: g++ takes f(T(x), T(x)) for a declaration of parameters.
            bits = exact if self.lang.arbitrary else [self._unsigned(a, result) for a in exact]
            return self._reinterpreted(self._unsigned_helper(name, bits, result), result)
        if name in self.lang.math:
            return self._function(self.lang.math[name], exact, result)
        if isinstance(op, SaturateOp):
            return self._saturate(op, exact[0])
        if isinstance(op, arith.CmpiOp):
            return self._compare_ints(op.predicate.value.data, exact[0], exact[1], types[0])
        if isinstance(op, arith.CmpfOp):
            return self._compare_floats(op.predicate.value.data, *exact)
        if isinstance(op, arith.SelectOp):
            return self.choose(exact[0], args[1], args[2], result)
        match name:
            case "arith.divsi" | "arith.remsi":
                return self._divide("/" if name == "arith.divsi" else "%", exact[0], exact[1], result)
            case "arith.divui" | "arith.remui":
                a, b = exact if self._index(types[0]) else [self._unsigned(x, result) for x in exact]
                text = f"{at(a, TIMES)} {'/' if name == 'arith.divui' else '%'} {at(b, TIMES + 1)}"
                return self._reinterpreted(Code(text, TIMES, self._promoted(a.type, b.type)), result)
            case "arith.shli":
                return self._shift_left(args[0], exact[1], result)
            case "arith.shrsi":
                a = self._container(exact[0], result)
                return Code(f"{at(a, UNARY)} >> {at(exact[1], UNARY)}", SHIFT, self._promoted(a.type, a.type))
            case "arith.shrui":
                a = self._unsigned(exact[0], result)
                return self._reinterpreted(Code(f"{at(a, UNARY)} >> {at(exact[1], UNARY)}", SHIFT, a.type), result)
            case "arith.extsi":
                if types[0] == IntegerType(1):  # i1 is -1 or 0
                    return Code(f"-{at(exact[0], UNARY)}", UNARY, INT)
                return exact[0]
            case "arith.extui":
                given = args[0] if self.lang.arbitrary else exact[0]  # a cast to ap_uint takes it modulo 2^bits
                return exact[0] if types[0] == IntegerType(1) else self._unsigned(given, types[0])
            case "arith.trunci":
                return self._truncated(args[0], result)
            case "arith.index_cast":
                if self._index(result):
                    return exact[0] if exact[0].type == INT else cast(exact[0], INT, self.lang, self.lang.index)
                return exact[0] if width(result) >= 32 else self._truncated(exact[0], result)
            case "arith.sitofp" | "arith.uitofp":
                if types[0] == IntegerType(1):  # with a sign, i1 is -1 or 0
                    a = Code(f"-{at(exact[0], UNARY)}", UNARY, INT) if name == "arith.sitofp" else exact[0]
                else:
                    a = exact[0] if name == "arith.sitofp" else self._unsigned(exact[0], types[0])
                return self._to_float(a, result)
            case "arith.extf" | "arith.truncf":
                return self._to_float(exact[0], result)
            case "arith.fptosi" | "arith.fptoui" if result == IntegerType(1):
                return Code(f"{at(cast(exact[0], INT, self.lang), EQUAL + 1)} != 0", EQUAL, BOOL)
            case "arith.fptosi":
                return cast(exact[0], CType("int", container_bits(width(result))), self.lang)
            case "arith.fptoui":
                kind = CType("int", container_bits(width(result)), False)
                return self._reinterpreted(cast(exact[0], kind, self.lang), result)
            case "arith.negf":
                if exact[0].text.startswith("-"):
                    return Code(f"-({exact[0].text})", UNARY, exact[0].type)
                return Code(f"-{at(exact[0], UNARY)}", UNARY, exact[0].type)
            case "arith.bitcast":
                return bitcast(exact[0], types[0], result, self.lang, self.helpers)
            case "math.absi":
                return self._unary_helper("abs", "return a < 0 ? ({T})-a : a;", exact, result)
            case "math.rsqrt":
                root = self._function("sqrt", exact, result)
                return self._float_binary("/", TIMES, real(1.0, root.type.bits), root, result)
        raise CuvilError(f"level2 op {name} can't be rendered as {self.lang.name}; lower it to arith or math ops first")

    # -- integers ----------------------------------------------------------------------------------------------------

    def _index(self, type: Attribute) -> bool:
        return isinstance(type, IndexType)

    def _wide(self, a: Code, b: Code, type: Attribute) -> tuple[Code, Code]:
        """Operands such that the language computes in at least the bits of `type`."""
        if self._index(type):
            return a, b
        if self.lang.arbitrary:
            if a.type.kind == "arbitrary" or b.type.kind == "arbitrary" or width(type) <= 32:
                return a, b
        elif width(type) <= 32 or max(a.type.bits, b.type.bits) > 32:
            return a, b
        wide = value_type(type, self.lang)
        return (a, cast(b, wide, self.lang)) if a.literal is not None else (cast(a, wide, self.lang), b)

    def _container(self, a: Code, type: Attribute) -> Code:
        """`a` computed in at least the bits of `type` (a shift takes its type from the left side alone)."""
        if self.lang.arbitrary:
            enough = a.type.kind == "arbitrary" or width(type) <= 32
        else:
            enough = self._index(type) or width(type) <= 32 or a.type.bits > 32
        if enough:
            return a
        return cast(a, value_type(type, self.lang), self.lang)

    def _promoted(self, a: CType, b: CType) -> CType:
        """The type in which the language computes with `a` and `b` (before any operator's own growth)."""
        if "float" in (a.kind, b.kind):
            return CType("float", max(t.bits for t in (a, b) if t.kind == "float"))
        if "arbitrary" in (a.kind, b.kind):
            mixed = a.signed != b.signed
            return CType("arbitrary", max(t.bits + (mixed and not t.signed) for t in (a, b)), a.signed or b.signed)
        bits = max(a.bits, b.bits, 32)
        return CType("int", bits, not any(not t.signed and t.bits == bits for t in (a, b)))

    def _finish(self, text: str, prec: int, kind: CType, type: Attribute, *, right: bool = True) -> Code:
        """A result whose C type is `kind`: is it the value of `type`? `right`: the operands were exact."""
        bits = width(type)
        if kind.kind == "arbitrary" or self.lang.arbitrary:
            fits = kind.bits <= bits and (kind.signed or kind.bits < bits)
            # Native arithmetic of narrow values can't leave its type: it is exact by construction.
            native = self._index(type) or (kind.kind == "int" and bits not in (8, 16))
            return Code(text, prec, kind, right and (fits or native))
        wraps = bits in (8, 16, 32, 64) and not self._index(type)
        return Code(text, prec, kind, (right and not wraps) or (wraps and kind.bits == bits and kind.signed))

    def ring(self, sign: str, prec: int, a: Code, b: Code, type: Attribute) -> Code:
        if sign in "+-*" and (folded := self._folded(sign, a, b, type)):
            return folded
        a, b = self._wide(a, b, type)
        common = self._promoted(a.type, b.type)
        if common.kind == "arbitrary":
            common = self._widened(sign, a.type, b.type)
            if common.bits > 96:  # simulators stop at 128 bits
                a, b = self.as_type(a, type), self.as_type(b, type)
                common = self._widened(sign, a.type, b.type)
        tight = UNARY if sign in "&|^" else prec
        left = at(a, prec if a.split is not None and a.split[0] == sign else tight)
        # Integer sums and products may be regrouped: both wrap, or are exact.
        regroup = sign in "+*" or (b.split is not None and b.split[0] == sign != "-")
        right = at(b, prec if regroup else max(tight, prec + 1))
        if sign in "+-" and b.literal is not None and b.literal < 0 and b.prec == UNARY:
            sign, right = "-" if sign == "+" else "+", b.text.removeprefix("-")
        made = self._finish(f"{left} {sign} {right}", prec, common, type, right=a.exact and b.exact)
        return replace(made, split=(sign, left, right))

    def _modular(self, a: Code, type: Attribute) -> Code:
        """`a` as an unsigned number, which wraps where signed overflow is undefined."""
        kind = CType("int", width(type), False)
        if a.literal is not None and a.literal >= 0 and width(type) == 32:
            return a
        return a if a.type == kind else inexact(cast(a, kind, self.lang))

    def _folded(self, sign: str, a: Code, b: Code, type: Attribute) -> Code | None:
        """x + 0, 0 + x, x - 0, x * 1, 1 * x; for indices also x * 0 and what two literals give."""
        if self._index(type) and a.literal is not None and b.literal is not None:
            both = {"+": a.literal + b.literal, "-": a.literal - b.literal, "*": a.literal * b.literal}
            return integer(both[sign])
        if self._index(type) and sign == "*" and 0 in (a.literal, b.literal):
            return integer(0)
        unit = 1 if sign == "*" else 0
        if b.literal == unit:
            return a
        return b if a.literal == unit and sign != "-" else None

    def _widened(self, sign: str, a: CType, b: CType) -> CType:
        """Result types of ap_int operators as UG1399 gives them."""
        common = self._promoted(a, b)
        if sign == "*":
            return CType("arbitrary", a.bits + b.bits, common.signed)
        if sign in "+-":
            return CType("arbitrary", common.bits + 1, common.signed or sign == "-")
        return common

    def _divide(self, sign: str, a: Code, b: Code, type: Attribute) -> Code:
        if self.lang.arbitrary and not self._index(type):  # vendors differ on mixed signs
            a, b = self.as_type(a, type), self.as_type(b, type)
        a, b = self._wide(a, b, type)
        # The quotient of the lowest value by -1 is one bit wider: only that wraps.
        return self._finish(f"{at(a, TIMES)} {sign} {at(b, TIMES + 1)}", TIMES, self._quotient(sign, a, b), type)

    def _quotient(self, sign: str, a: Code, b: Code) -> CType:
        common = self._promoted(a.type, b.type)
        if common.kind != "arbitrary":
            return common
        bits = a.type.bits + b.type.signed if sign == "/" else min(a.type.bits, b.type.bits + 1)
        return CType("arbitrary", bits, common.signed)

    def _logic(self, name: str, a: Code, b: Code) -> Code:
        sign, prec = LOGIC[name]
        if sign == "!=" and b.literal == 1:
            return Code(f"!{at(a, UNARY)}", UNARY, BOOL)
        for one, other in ((a, b), (b, a)):
            if one.literal is not None and sign in ("&&", "||"):
                return other if one.literal == (sign == "&&") else one
        tight = UNARY if sign == "!=" else EQUAL
        left, right = (at(x, prec if x.split and x.split[0] == sign else tight) for x in (a, b))
        return Code(f"{left} {sign} {right}", prec, BOOL, split=(sign, left, right))

    def _shift_left(self, a: Code, by: Code, type: Attribute) -> Code:
        if self.lang.arbitrary and not self._index(type):
            a = self.as_type(a, type)  # << keeps the type of its left side
            return Code(f"{at(a, UNARY)} << {at(by, UNARY)}", SHIFT, a.type)
        a = self._container(a, type)
        kind = self._promoted(a.type, a.type)
        return self._finish(f"{at(a, UNARY)} << {at(by, UNARY)}", SHIFT, kind, type, right=a.exact)

    def _truncated(self, a: Code, type: Attribute) -> Code:
        bits = width(type)
        if bits == 1:
            return Code(f"({at(a, AND)} & 1) != 0", EQUAL, BOOL)
        if self.lang.arbitrary or bits == container_bits(bits):
            return inexact(a)
        box = container_bits(bits)
        spare = box - bits
        up = cast(a, CType("int", box, False), self.lang)
        moved = Code(f"{at(up, UNARY)} << {spare}", SHIFT, CType("int", max(box, 32)))
        down = cast(moved, CType("int", box), self.lang)
        return Code(f"{at(down, UNARY)} >> {spare}", SHIFT, CType("int", max(box, 32)))

    def _unsigned(self, a: Code, type: Attribute) -> Code:
        """The bits of a value of `type`, read as a number ≥ 0."""
        bits = width(type)
        if a.exact and a.type.kind == "arbitrary" and not a.type.signed and a.type.bits <= bits:
            return a
        if a.literal is not None and not self.lang.arbitrary:
            n = a.literal % (1 << bits)
            return integer(n) if bits < 64 else Code(f"{n}ULL", PRIMARY, CType("int", 64, False), literal=n)
        if self.lang.arbitrary and not self._index(type):
            return cast(a, CType("arbitrary", bits, False), self.lang)
        if bits == container_bits(bits):
            return cast(a, CType("int", bits, False), self.lang)
        mask = integer((1 << bits) - 1)
        return Code(f"{at(a, UNARY)} & {mask.text}", AND, CType("int", max(32, container_bits(bits))))

    def _reinterpreted(self, a: Code, type: Attribute) -> Code:
        """An unsigned value as the signless value of `type` that has the same bits."""
        if self._index(type) or self.lang.arbitrary or width(type) == container_bits(width(type)):
            return a if self._index(type) else inexact(a)
        return self._truncated(a, type)

    def _saturate(self, op: SaturateOp, a: Code) -> Code:
        dtype, result = op.dtype.data, op.output.type
        signed, bits = dtypes.int_width(dtype) or (True, 64)
        if self.lang.saturate:
            kind = CType("arbitrary", bits, signed)
            x = a if a.type.kind == "arbitrary" else self.as_type(a, op.value.type)
            text = self.lang.saturate.format(type=spelled(kind, self.lang), layer=op.layer.value.data, x=x.text)
            made = Code(text, PRIMARY, kind, signed)
            return self.as_type(made, result) if bits == 1 else made
        source = value_type(op.value.type, self.lang)
        lo, hi = dtypes.int_range(dtype)
        x = Code("x", PRIMARY, source)
        clipped = Code(f"x < {lo} ? {lo} : x > {integer(hi).text} ? {integer(hi).text} : x", CHOICE, source)
        wrapped = clipped if signed else self._truncated(clipped, result)
        out, name = declared(result, self.lang), f"saturate_i{source.bits}_{dtype}"
        body = f"return {cast(wrapped, value_type(result, self.lang), self.lang).text};"
        self.helpers[name] = f"{self.lang.helper} {out} {name}({spelled(source, self.lang)} {x.text}) {{ {body} }}"
        return Code(f"{name}({a.text})", PRIMARY, value_type(result, self.lang))

    def _compare_ints(self, predicate: int, a: Code, b: Code, type: Attribute) -> Code:
        sign = ("==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">=")[predicate]
        if predicate >= 6 and type != IntegerType(1):
            a, b = self._unsigned(a, type), self._unsigned(b, type)
        elif type == IntegerType(1):
            a, b = (b, a) if 2 <= predicate < 6 else (a, b)  # true is -1 where it has a sign
        else:
            if self.lang.arbitrary and a.type.signed != b.type.signed:  # some vendors compare these as unsigned
                a, b = self.as_type(a, type), self.as_type(b, type)
            a, b = self._wide(a, b, type)
        tight = SHIFT + 1
        return Code(f"{at(a, tight)} {sign} {at(b, tight)}", EQUAL if predicate < 2 else LESS, BOOL)

    # -- floats and helper functions --------------------------------------------------------------------------------

    def _to_float(self, a: Code, type: Attribute) -> Code:
        kind = value_type(type, self.lang)
        return a if a.type == kind else cast(a, kind, self.lang)

    def _float_operands(self, args: Sequence[Code], type: Attribute) -> tuple[list[Code], int]:
        """f16 is computed in f32 and rounded once, the same on every compiler."""
        bits = value_type(type, self.lang).bits
        if bits != 16:
            return list(args), bits
        return [cast(a, CType("float", 32), self.lang) if a.type.bits == 16 else a for a in args], 32

    def _float_binary(self, sign: str, prec: int, a: Code, b: Code, type: Attribute) -> Code:
        (a, b), bits = self._float_operands((a, b), type)
        left, right = at(a, prec), at(b, prec + 1)
        exact = value_type(type, self.lang).bits != 16
        split = (sign, left, right) if exact else None
        return Code(f"{left} {sign} {right}", prec, CType("float", bits), exact, split=split)

    def _function(self, name: str, args: Sequence[Code], type: Attribute) -> Code:
        args, bits = self._float_operands(args, type)
        called = self.lang.twin(name, self.helpers) if bits == 32 else name
        exact = bits == value_type(type, self.lang).bits
        return Code(f"{called}({', '.join(a.text for a in args)})", PRIMARY, CType("float", bits), exact)

    def _call_helper(self, op: str, body: str, args: Sequence[Code], type: Attribute) -> Code:
        kind, letter = declared(type, self.lang), "f" if isinstance(type, AnyFloat) else "i"
        suffix = kind if self._index(type) else f"{letter}{value_type(type, self.lang).bits}"
        name = f"{op.removeprefix('arith.').removesuffix('si').removesuffix('f')}_{suffix}"
        self.helpers[name] = f"{self.lang.helper} {kind} {name}({kind} a, {kind} b) {{ {body} }}"
        return Code(f"{name}({', '.join(a.text for a in args)})", PRIMARY, value_type(type, self.lang))

    def _unary_helper(self, stem: str, body: str, args: Sequence[Code], type: Attribute) -> Code:
        kind, name = declared(type, self.lang), f"{stem}_i{value_type(type, self.lang).bits}"
        self.helpers[name] = f"{self.lang.helper} {kind} {name}({kind} a) {{ {body.format(T=kind)} }}"
        return Code(f"{name}({args[0].text})", PRIMARY, value_type(type, self.lang))

    def _unsigned_helper(self, op: str, args: Sequence[Code], type: Attribute) -> Code:
        bits = width(type)
        kind = CType("arbitrary", bits, False) if self.lang.arbitrary else CType("int", container_bits(bits), False)
        word, name = spelled(kind, self.lang), f"{op.removeprefix('arith.').removesuffix('ui')}_u{kind.bits}"
        self.helpers[name] = f"{self.lang.helper} {word} {name}({word} a, {word} b) {{ {UNSIGNED_HELPERS[op]} }}"
        return Code(f"{name}({', '.join(a.text for a in args)})", PRIMARY, kind)

    def _compare_floats(self, predicate: int, a: Code, b: Code) -> Code:
        """NaN makes an ordered comparison false and an unordered one true."""
        left, right = at(a, SHIFT + 1), at(b, SHIFT + 1)
        plain = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<=", 13: "!="}
        negated = {9: "<=", 10: "<", 11: ">=", 12: ">"}
        if predicate in plain:
            return Code(f"{left} {plain[predicate]} {right}", EQUAL if predicate in (1, 13) else LESS, BOOL)
        if predicate in negated:
            return Code(f"!({left} {negated[predicate]} {right})", UNARY, BOOL)
        if predicate in (0, 15):
            return Code("true" if predicate else "false", PRIMARY, BOOL, literal=int(predicate == 15))
        name = {6: "one", 7: "ord", 8: "ueq", 14: "uno"}[predicate]
        if a == b and name in ("ord", "uno") and a.atom:
            return Code(f"{left} {'==' if name == 'ord' else '!='} {right}", EQUAL, BOOL)
        body = {
            "one": "return a < b || a > b;",
            "ord": "return a == a && b == b;",
            "ueq": "return !(a < b || a > b);",
            "uno": "return a != a || b != b;",
        }[name]
        kind = spelled(CType("float", max(a.type.bits, b.type.bits)), self.lang)
        helper = f"{name}_f{max(a.type.bits, b.type.bits)}"
        self.helpers[helper] = f"{self.lang.helper} {self.lang.boolean} {helper}({kind} a, {kind} b) {{ {body} }}"
        return Code(f"{helper}({a.text}, {b.text})", PRIMARY, BOOL)

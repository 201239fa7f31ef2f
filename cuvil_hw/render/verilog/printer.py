"""Modules of the hardware level (ir/hardware.py) as SystemVerilog, the same bytes for the same module.

Registers that share an enable stand in one block; what is only wiring (parts, joins, constants) stands where it is
used.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import comb, hw
from xdsl.dialects.builtin import IntegerAttr, IntegerType, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue

from cuvil_hw.errors import CuvilError
from cuvil_hw.errors.quoting import visible
from cuvil_hw.ir.hardware import Block, RegisterOp, width_of
from cuvil_hw.render.verilog.keywords import KEYWORDS

_JOINED = {"comb.and": "&", "comb.or": "|", "comb.xor": "^", "comb.add": "+", "comb.mul": "*"}
_TWO = {"comb.sub": "-", "comb.shl": "<<", "comb.shru": ">>"}
_COMPARED = ("==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">=")
_RING = (comb.AddOp, comb.SubOp, comb.MulOp)
_WIRING = (comb.ConcatOp, comb.ReplicateOp, comb.AndOp, comb.OrOp, comb.XorOp)  # as text in its only user


def text_of(module: hw.HWModuleOp, comment: str = "") -> str:
    """The file of a module."""
    return _Text(module).whole(comment)


def _range(kind: Attribute) -> str:
    bits = int(kind.width.data) if isinstance(kind, IntegerType) else 1
    return f"[{bits - 1}:0] " if bits > 1 else ""


class _Text:
    def __init__(self, module: hw.HWModuleOp) -> None:
        self.module = module
        self.names: dict[SSAValue, str] = {}
        self.taken: set[str] = set(KEYWORDS)
        inputs = iter(module.body.block.args)
        for port in module.module_type.ports:
            self.taken.add(port.port_name.data)
            if port.dir.data == hw.Direction.INPUT:
                self.names[next(inputs)] = port.port_name.data

    def whole(self, comment: str) -> str:
        ops = list(self.module.body.block.ops)
        for op in ops:
            if not isinstance(op, hw.ConstantOp | comb.ExtractOp | hw.OutputOp) and not self._inside(op):
                for n, result in enumerate(op.results):
                    self.names[result] = self._name(op, n)
        lines = [*(f"// {visible(line)}".rstrip() for line in comment.splitlines()), *self._head()]
        declared = [r for op in ops for r in op.results if r in self.names]
        lines += [f"  logic {_range(r.type)}{self.names[r]};" for r in declared]
        lines += [f"  assign {self.names[op.results[0]]} = {self._value(op)};" for op in ops if self._assigned(op)]
        lines += self._registers([op for op in ops if isinstance(op, RegisterOp)])
        for op in ops:
            lines += self._instance(op)
        end = ops[-1]
        outputs = [p.port_name.data for p in self.module.module_type.ports if p.dir.data == hw.Direction.OUTPUT]
        lines += [f"  assign {n} = {self.whole_of(v)};" for n, v in zip(outputs, end.operands, strict=True)]
        return "\n".join([*lines, "endmodule", ""])

    def _head(self) -> list[str]:
        ports = []
        for port in self.module.module_type.ports:
            way = "input " if port.dir.data == hw.Direction.INPUT else "output"
            ports.append(f"  {way} logic {_range(port.type)}{port.port_name.data}")
        return [f"module {self.module.sym_name.data} (", ",\n".join(ports), ");"]

    def _name(self, op: Operation, n: int) -> str:
        if isinstance(op, Block):
            port = next(name for name, value in op.ports() if value is op.results[n])
            wanted = f"{op.instance_name}_{port}"
        elif isinstance(op, hw.InstanceOp):
            wanted = f"{op.instance_name.data}_{op.result_names.data[n].data}"
        else:
            hint = op.attributes.get("sv.namehint")
            wanted = hint.data if isinstance(hint, StringAttr) else f"w{len(self.names)}"
        return self._free(wanted, "v")

    def _free(self, wanted: str, kind: str) -> str:
        """A name that nothing has yet. `kind`: a letter before the number that tells it from others."""
        free, more = wanted, 1
        while free in self.taken:
            more += 1
            free = f"{wanted}_{kind}{more}"
        self.taken.add(free)
        return free

    def _inside(self, op: Operation) -> bool:
        """Whether an op is written where its result is used: wiring with one user, which takes no part of it."""
        if not isinstance(op, _WIRING) or "sv.namehint" in op.attributes:
            return False
        users = [use.operation for use in op.results[0].uses]
        return len(users) == 1 and not isinstance(users[0], comb.ExtractOp)

    def _assigned(self, op: Operation) -> bool:
        return (
            len(op.results) == 1
            and op.results[0] in self.names
            and not isinstance(op, RegisterOp | Block | hw.InstanceOp)
        )

    # -- expressions ---------------------------------------------------------------------------------------------------

    def whole_of(self, value: SSAValue) -> str:
        """An expression that stands alone."""
        if value in self.names:
            return self.names[value]
        assert isinstance(value.owner, Operation)
        return self._value(value.owner)

    def operand(self, value: SSAValue) -> str:
        """An expression within another."""
        text, op = self.whole_of(value), value.owner
        if value in self.names:
            return text
        return (
            text if isinstance(op, hw.ConstantOp | comb.ExtractOp | comb.ConcatOp | comb.ReplicateOp) else f"({text})"
        )

    def _value(self, op: Operation) -> str:
        args = [self.operand(v) for v in op.operands] if not isinstance(op, _RING) else self._terms(op)
        match op:
            case hw.ConstantOp():
                return _constant(op)
            case comb.ExtractOp():
                low, bits = int(op.low_bit.value.data), width_of(op.result)
                if bits == width_of(op.input):
                    return args[0]
                return f"{args[0]}[{low}]" if bits == 1 else f"{args[0]}[{low + bits - 1}:{low}]"
            case comb.ConcatOp():
                return f"{{{', '.join(args)}}}"
            case comb.ReplicateOp():
                return f"{{{width_of(op.result) // width_of(op.input)}{{{args[0]}}}}}"
            case comb.MuxOp():
                return f"{args[0]} ? {args[1]} : {args[2]}"
            case comb.ShrSOp():
                return f"$signed({args[0]}) >>> {args[1]}"
            case comb.ICmpOp():
                rule = int(op.predicate.value.data)
                a, b = (f"$signed({x})" for x in args) if 2 <= rule < 6 else args
                return f"{a} {_COMPARED[rule]} {b}"
            case comb.XorOp() if len(args) == 2 and _ones(op.inputs[1]):
                return f"~{args[0]}"
        if len(args) == 1:
            return self.whole_of(op.operands[0])
        if op.name in _JOINED:
            kind = op.attributes.get("cuvil.multiplier")
            logic = ' (* use_dsp = "no" *)' if isinstance(kind, StringAttr) and kind.data == "lut" else ""
            return f" {_JOINED[op.name]}{logic} ".join(args)
        if op.name in _TWO:
            return f"{args[0]} {_TWO[op.name]} {args[1]}"
        raise CuvilError(f"hardware: {op.name} has no SystemVerilog")

    def _terms(self, op: Operation) -> list[str]:
        """Terms and factors that were made wider by their sign are written as what they are: narrow and signed."""
        found = [_narrow(v) for v in op.operands]
        if not any(narrow is not None for narrow in found):
            return [self.operand(v) for v in op.operands]
        texts = []
        for value, narrow in zip(op.operands, found, strict=True):
            of, signed = narrow or (value, True)
            inner = self.operand(of)
            texts.append(f"$signed({inner})" if signed else f"$signed({{1'b0, {inner}}})")
        return texts

    # -- registers and instances ---------------------------------------------------------------------------------------

    def _registers(self, ops: list[RegisterOp]) -> Iterator[str]:
        groups: dict[tuple[SSAValue, SSAValue | None], list[RegisterOp]] = {}
        for op in ops:
            groups.setdefault((op.ce, op.reset), []).append(op)
        for (enable, reset), members in groups.items():
            yield f"  always_ff @(posedge {self.operand(members[0].clk)})"
            taken = [f"{self.names[op.data]} <= {self.whole_of(op.input)};" for op in members]
            condition = "" if _ones(enable) else f"if ({self.whole_of(enable)}) "
            if reset is not None:
                yield f"    if ({self.operand(reset)}) begin"
                for op in members:
                    assert op.reset_value is not None
                    yield f"      {self.names[op.data]} <= {self.operand(op.reset_value)};"
                yield f"    end else {condition}begin"
            else:
                yield f"    {condition}begin"
            yield from (f"      {line}" for line in taken)
            yield "    end"

    def _instance(self, op: Operation) -> Iterator[str]:
        if isinstance(op, Block):
            given = ", ".join(
                f".{key}({value})" if isinstance(value, int) else f'.{key}("{value}")' for key, value in op.parameters()
            )
            yield f"  {op.MODULE} #({given}) {self._free(op.instance_name, 'u')} ("
            ports = list(op.ports())
        elif isinstance(op, hw.InstanceOp):
            yield f"  {op.module_name.root_reference.data} {self._free(op.instance_name.data, 'u')} ("
            names = [n.data for n in (*op.arg_names, *op.result_names)]
            ports = list(zip(names, (*op.operands, *op.results), strict=True))
        else:
            return
        yield ",\n".join(f"    .{name}({self.whole_of(value)})" for name, value in ports)
        yield "  );"


def _constant(op: hw.ConstantOp) -> str:
    bits = width_of(op.result)
    return f"{bits}'h{int(op.value.value.data) & ((1 << bits) - 1):x}"


def _ones(value: SSAValue) -> bool:
    op = value.owner
    if not isinstance(op, hw.ConstantOp) or not isinstance(op.value, IntegerAttr):
        return False
    full = (1 << width_of(value)) - 1
    return int(op.value.value.data) & full == full


def _narrow(value: SSAValue) -> tuple[SSAValue, bool] | None:
    """What a value was made wider from, and whether by its sign."""
    op = value.owner
    if not isinstance(op, comb.ConcatOp) or len(op.inputs) != 2:
        return None
    more, low = op.inputs
    above = more.owner
    if isinstance(above, hw.ConstantOp) and int(above.value.value.data) == 0:
        return low, False
    top = above.input.owner if isinstance(above, comb.ReplicateOp) else above
    sign = isinstance(top, comb.ExtractOp) and _place(top.result) == _place(low, width_of(low) - 1)
    return (low, True) if sign or (isinstance(above, comb.ReplicateOp) and above.input is low) else None


def _place(value: SSAValue, bit: int = 0) -> tuple[SSAValue, int]:
    """A bit of a value, as one of what that is a part of."""
    op = value.owner
    return (op.input, int(op.low_bit.value.data) + bit) if isinstance(op, comb.ExtractOp) else (value, bit)

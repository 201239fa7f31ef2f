"""A scheduled process as an hw.module: stages with a register for every value that the next one needs.

All stages move on together, unless a word that is to be written isn't taken yet. Where a step can't start because a
word is missing, an empty one follows: what is in the pipeline always comes out. So a process takes words like one
without a pipeline, and holds nothing back that others wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdsl.dialects import comb, hw, seq
from xdsl.dialects.builtin import IntegerType, StringAttr, i1
from xdsl.ir import SSAValue

from cuvil_hw.adapters.streaming.rtl.demand import demanded
from cuvil_hw.adapters.streaming.rtl.graph import Signal, bits_for, cut, word_range
from cuvil_hw.adapters.streaming.rtl.netlist import Netlist
from cuvil_hw.adapters.streaming.rtl.pipeline import MemoryWrite, Staged
from cuvil_hw.adapters.streaming.rtl.step import Lane
from cuvil_hw.ir.hardware import RamOp, RegisterOp, RomOp, address_bits, width_of

Tables = dict[str, list[str]]  # words in hexadecimal, by file


def circuit(plan: Staged) -> tuple[hw.HWModuleOp, Tables]:
    """The module of a process, and the contents of its tables by file."""
    return _Circuit(plan).made()


class _Circuit:
    def __init__(self, plan: Staged) -> None:
        self.plan = plan
        inputs: list[tuple[str, Any]] = [("clk", seq.clock), ("rst", i1)]
        for c in plan.reads:
            inputs += [(f"{c.name}_data", IntegerType(c.lanes * c.bits)), (f"{c.name}_valid", i1)]
        inputs += [(f"{c.name}_ready", i1) for c in plan.writes]
        self.w = Netlist(inputs)
        self.tables: Tables = {}
        self.wide = demanded(plan)
        self.values: dict[tuple[Signal, int], SSAValue] = {}
        self.names: dict[Signal, str] = {}
        self.written: list[tuple[RamOp, int]] = []  # memories whose ports to write aren't joined yet
        self.loads = _together(plan)
        self.go = self.w.put(comb.AndOp([self.w.const(1, 1)]), "go")  # all stages move on; `_end` says when
        self.front = self.go  # stages before the one that reads, which wait for words, too; `_start` says when
        if plan.read or plan.ii > 1:
            self.front = self.w.put(comb.AndOp([self.w.const(1, 1)]), "front")

    def made(self) -> tuple[hw.HWModuleOp, Tables]:
        w, plan = self.w, self.plan
        self._words()
        kept = [self._register(n) for n in range(len(plan.registers))]
        outputs = self._start()
        for op, register in zip(kept, plan.registers, strict=True):
            stage = max(plan.stage[register.now], plan.stage.get(register.next, 0))
            op.operands[0] = self.sized(register.next, stage, width_of(op.data))
            op.operands[2] = self.moves[stage]
        outputs.update(self._end())
        for ram, n in self.written:  # it grows: to make an address may take another memory
            self._write(ram, plan.stored[n], plan.write_stage[n])
        return w.module(plan.step.name, outputs), self.tables

    # -- control -------------------------------------------------------------------------------------------------------

    def _words(self) -> None:
        for c in self.plan.reads:
            for n in range(c.lanes):
                leaf = self.plan.step.graph.leaf(*word_range(c.bits), ("word", c.name, n))
                if leaf in self.plan.stage:
                    self.values[leaf, self.plan.read] = self.w.extract(
                        self.w.ports[f"{c.name}_data"], n * c.bits, self.wide[leaf]
                    )
                    self.names[leaf] = f"{c.name}_{n}" if c.lanes > 1 else c.name

    def _register(self, n: int) -> RegisterOp:
        """A register whose next value isn't joined yet."""
        w, r = self.w, self.plan.registers[n]
        bits = self.wide[r.now]
        reset = (w.ports["rst"], w.const(r.first, bits)) if r.first is not None else None
        op = RegisterOp(w.const(0, bits), w.ports["clk"], self.go, reset)
        self.values[r.now, self.plan.stage[r.now]] = w.put(op, r.name)
        self.names[r.now] = r.name
        return op

    def _start(self) -> dict[str, SSAValue]:
        """When a step goes on: what it wants to read is there, and `ii` cycles have passed. Returns which words are
        taken."""
        w, plan = self.w, self.plan
        begun: SSAValue = w.const(1, 1)
        if plan.ii > 1:
            bits = address_bits(plan.ii)
            pace = RegisterOp(w.const(0, bits), w.ports["clk"], self.front, (w.ports["rst"], w.const(0, bits)))
            w.put(pace, "pace")
            begun = w.put(comb.ICmpOp(pace.data, w.const(0, bits), "eq"), "rested")
            less = w.put(comb.SubOp(pace.data, w.const(1, bits)))
            pace.operands[0] = w.put(comb.MuxOp(begun, w.const(plan.ii - 1, bits), less))
        self.valid = [begun]
        for stage in range(1, plan.read + 1):
            self.valid.append(w.register(f"valid_{stage}", self.valid[-1], self.front, w.const(0, 1)))
        self.moves = [w.both([self.front, valid]) for valid in self.valid[:-1]]
        here = self.valid.pop()
        wants = {c: self.at(want, plan.read) for c, want in plan.reads.items()}
        there = {c: w.either([w.invert(want), w.ports[f"{c.name}_valid"]]) for c, want in wants.items()}
        satisfied = w.both(list(there.values()))
        owner = self.front.owner
        if self.front is not self.go and isinstance(owner, comb.AndOp):
            owner.operands[0] = w.both([self.go, w.either([w.invert(here), satisfied])])
        self.valid.append(w.both([here, satisfied]))
        for stage in range(plan.read + 1, plan.last + 1):
            self.valid.append(w.register(f"valid_{stage}", self.valid[-1], self.go, w.const(0, 1)))
        self.moves += [w.both([self.go, valid]) for valid in self.valid[plan.read :]]
        result = {}
        for c, want in wants.items():
            others = [ok for other, ok in there.items() if other is not c]
            result[f"{c.name}_ready"] = w.both([self.go, here, want, *others])
        return result

    def _end(self) -> dict[str, SSAValue]:
        """Words are offered in the last stage until they are taken, each once; all stages wait for that."""
        w, plan, outputs, done = self.w, self.plan, {}, []
        for c, (want, lanes) in plan.writes.items():
            wants = w.both([self.valid[plan.last], self.at(want, plan.last)])
            ready, offered = w.ports[f"{c.name}_ready"], wants
            if len(plan.writes) > 1:  # one may be taken while another one waits
                sent = RegisterOp(w.const(0, 1), w.ports["clk"], w.const(1, 1), (w.ports["rst"], w.const(0, 1)))
                w.put(sent, f"{c.name}_sent")
                offered = w.both([wants, w.invert(sent.data)])
                taken = w.either([sent.data, w.both([offered, ready])])
                sent.operands[0] = w.both([w.invert(self.go), taken])
            done.append(w.either([w.invert(offered), ready]))
            outputs[f"{c.name}_valid"] = offered
            outputs[f"{c.name}_data"] = w.concat([self.sized(v, plan.last, c.bits) for v in reversed(lanes)])
        owner = self.go.owner
        assert isinstance(owner, comb.AndOp)
        owner.operands[0] = w.both(done)
        return outputs

    # -- values --------------------------------------------------------------------------------------------------------

    def at(self, node: Signal, stage: int) -> SSAValue:
        """A node's value in a stage from its own on."""
        if node.value is not None:
            return self.w.const(node.value, node.bits)
        own = self.plan.stage[node]
        if (node, own) not in self.values:
            self._make(node)
        for s in range(own + 1, stage + 1):
            if (node, s) not in self.values:
                name = f"{self.names.get(node, f'n{node.number}')}_s{s}"
                self.values[node, s] = self.w.register(name, self.values[node, s - 1], self.into(s))
        return self.values[node, stage]

    def into(self, stage: int) -> SSAValue:
        """Whether values move on into a stage."""
        return self.front if stage <= self.plan.read else self.go

    def sized(self, node: Signal, stage: int, bits: int) -> SSAValue:
        """The low `bits` bits of a node's value."""
        if node.value is not None:
            return self.w.const(node.value, bits)
        return self.w.resize(self.at(node, stage), bits, node.signed)

    def _make(self, last: Signal) -> None:
        """The logic of a node in its stage, and before it that of all that it needs."""
        stack = [last]
        while stack:
            node = stack[-1]
            open_ = [a for a in node.args if a.value is None and (a, self.plan.stage[a]) not in self.values]
            if open_:
                stack += open_
                continue
            stack.pop()
            stage = self.plan.stage[node]
            if (node, stage) in self.values:
                continue
            if node.op == "load":
                self._load(node, stage)
            else:
                self.values[node, stage] = self._logic(node, stage, self.wide[node])

    def _logic(self, node: Signal, stage: int, bits: int) -> SSAValue:
        w = self.w

        def sized(n: int, to: int) -> SSAValue:
            return self.sized(node.args[n], stage, to)

        match node.op:
            case "wrap" | "within":
                return sized(0, bits)
            case "not":
                return w.invert(sized(0, 1))
            case "sum":
                a, b = sized(0, bits), sized(1, bits)
                return w.put(comb.AddOp([a, b]) if node.data[1] > 0 else comb.SubOp(a, b))
            case "mul":
                op = comb.MulOp([sized(0, bits), sized(1, bits)])
                if node.data:
                    op.attributes["cuvil.multiplier"] = StringAttr(node.data)
                return w.put(op)
            case "select":
                return w.put(comb.MuxOp(sized(0, 1), sized(1, bits), sized(2, bits)))
            case "and" | "or" | "xor":
                kind = {"and": comb.AndOp, "or": comb.OrOp, "xor": comb.XorOp}[node.op]
                return w.put(kind([sized(0, bits), sized(1, bits)]))
            case "eq" | "lt":
                lo, hi = min(a.lo for a in node.args), max(a.hi for a in node.args)
                wide = bits_for(lo, hi)
                rule = "eq" if node.op == "eq" else ("s" if lo < 0 else "u") + ("ge" if node.data else "lt")
                return w.put(comb.ICmpOp(sized(0, wide), sized(1, wide), rule))
        return self._shifted(node, stage, bits)

    def _shifted(self, node: Signal, stage: int, bits: int) -> SSAValue:
        w, (x, by) = self.w, node.args
        if by.value is not None:  # to the right: bits are dropped
            value = self.at(x, stage)
            low = min(by.value, width_of(value) - 1)
            return w.resize(w.extract(value, low, min(width_of(value) - low, bits)), bits, x.signed)
        wide = max(bits if node.op == "shl" else x.bits, by.bits)
        left, amount = self.sized(x, stage, wide), self.sized(by, stage, wide)
        if node.op == "shl":
            return w.resize(w.put(comb.ShlOp(left, amount)), bits, node.signed)
        shifted = comb.ShrSOp(left, amount) if x.signed else comb.ShrUOp(left, amount)
        return w.resize(w.put(shifted), bits, x.signed)

    # -- memories ------------------------------------------------------------------------------------------------------

    def _load(self, node: Signal, stage: int) -> None:
        """All lanes that are read with `node`: one port."""
        kind, name, _ = node.data
        nodes = self.loads[kind, name, node.args[0], stage]
        if kind == "rom":
            self._rom(name, nodes, stage)
            return
        for n, write in enumerate(self.plan.stored):
            lanes = [lane for lane, _ in write.lanes]
            here = [load for load in nodes if write.ram.name == name and load.data[2] in lanes]
            if here:
                self._ram(n, write, lanes, here, stage)
        for load in nodes:
            if (load, stage) not in self.values:  # nothing is ever written there
                self.values[load, stage] = self.w.const(0, self.wide[load])

    def _ram(self, n: int, write: MemoryWrite, lanes: list[Lane], nodes: list[Signal], stage: int) -> None:
        w, ram = self.w, write.ram
        bits = address_bits(ram.words)
        address = self.sized(nodes[0].args[0], stage - 1, bits)
        low, place, word = w.const(0, 1), w.const(0, bits), w.const(0, ram.bits * len(lanes))
        op = RamOp(
            w.unique(ram.name), [w.ports["clk"], low, place, word, self.into(stage), address], ram.words, ram.kind
        )
        data = w.put(op, f"{ram.name}_word")
        for load in nodes:
            at = lanes.index(load.data[2]) * ram.bits
            self.values[load, stage] = w.extract(data, at, self.wide[load])
        self.written.append((op, n))

    def _write(self, op: RamOp, write: MemoryWrite, stage: int) -> None:
        w, ram = self.w, write.ram
        op.operands[1] = w.both([self.moves[stage], self.at(write.want, stage)])
        op.operands[2] = self.sized(write.address, stage, address_bits(ram.words))
        op.operands[3] = w.concat([self.sized(v, stage, ram.bits) for _, v in reversed(write.lanes)])

    def _rom(self, name: str, nodes: list[Signal], stage: int) -> None:
        w = self.w
        columns = [self.plan.step.column(name, load.data[2]) for load in nodes]
        bits = [load.bits for load in nodes]
        words = []
        for row in zip(*columns, strict=True):
            word, at = 0, 0
            for value, wide in zip(row, bits, strict=True):
                word |= cut(value, wide, False) << at
                at += wide
            words.append(f"{word:0{(sum(bits) + 3) // 4}x}")
        file, n = f"{name}.hex", 1
        while self.tables.setdefault(file, words) != words:
            n += 1
            file = f"{name}_{n}.hex"
        address = self.sized(nodes[0].args[0], stage - 1, address_bits(len(words)))
        inputs, kind = [w.ports["clk"], self.into(stage), address], self.plan.step.bound[name]
        op = RomOp(w.unique(name), inputs, sum(bits), len(words), file, kind)
        data, at = w.put(op, f"{name}_word"), 0
        for load, wide in zip(nodes, bits, strict=True):
            self.values[load, stage] = w.extract(data, at, self.wide[load])
            at += wide


def _together(plan: Staged) -> Mapping[tuple[str, str, Signal, int], list[Signal]]:
    """Lanes of memories that are read at one place at one time."""
    found: dict[tuple[str, str, Signal, int], list[Signal]] = {}
    for node in plan.nodes:
        if node.op == "load":
            kind, name, _ = node.data
            found.setdefault((kind, name, node.args[0], plan.stage[node]), []).append(node)
    return {key: sorted(nodes, key=lambda n: tuple(n.data[2])) for key, nodes in found.items()}

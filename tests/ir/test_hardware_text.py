"""The hardware level as text: each .mlir file is parsed, printed and read again, and becomes SystemVerilog; CHECK lines
say what must come out. A file that begins with `// FROM: level2` is a streaming design, which is lowered first."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.dialects import hw
from xdsl.dialects.builtin import IntegerType, ModuleOp
from xdsl.ir import Block, Region
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from cuvil_hw.adapters.streaming.rtl.emit import hardware
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir import legal
from cuvil_hw.ir.hardware import BLOCKS, RamOp, context
from cuvil_hw.render.verilog.printer import text_of
from tests.ir.test_filecheck import check

FILES = sorted((Path(__file__).parent / "hardware").glob("*.mlir"))


def read(text: str) -> ModuleOp:
    made = Parser(context(), text).parse_module()
    made.verify()
    return made


@pytest.mark.needs("filecheck")
@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_what_it_is_and_prints(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    lowered = source.startswith("// FROM: level2\n")
    module = hardware(legal.parse(source), {}, "model")[0] if lowered else read(source)
    module.verify()
    assert str(read(str(module))) == str(module)  # what is printed can be read again
    verilog = [text_of(op) for op in module.body.block.ops if isinstance(op, hw.HWModuleOp)]
    printed = "\n".join([str(module) if lowered else "", *verilog])
    result = check(file, printed)
    assert result.returncode == 0, result.stdout + result.stderr + printed
    assert check(file, "builtin.module {}").returncode != 0, f"{file.name} accepts anything"


def test_every_block_has_a_file() -> None:
    code = "\n".join(str(hardware(legal.parse(t), {}, "m")[0]) if t.startswith("// FROM") else t
                     for t in (f.read_text(encoding="utf-8") for f in FILES))  # fmt: skip
    assert [op.name for op in BLOCKS if op.name not in code] == []


def test_words_fit_their_blocks() -> None:
    block = Block(arg_types=[IntegerType(n) for n in (1, 1, 3, 8, 1, 2)])
    op = RamOp("held", block.args, 4, "")
    block.add_op(op)
    region = Region(block)
    with pytest.raises(VerifyException, match=r"cuvil\.hardware\.ram"):
        op.verify()
    assert region.blocks


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("cuvil.pipeline = #cuvil.pipeline<1>, ", ""), "a loop that isn't pipelined holds more than another loop"),
        (("{cuvil.unroll = #cuvil.unroll}", ""), "a loop in the pipelined one isn't unrolled"),
        (("to %four step", "to %zero step"), "a loop without a step"),
    ],
)
def test_what_has_no_hardware_form_is_refused_with_its_place(change: tuple[str, str], why: str) -> None:
    source = (Path(__file__).parent / "hardware" / "accumulate.mlir").read_text(encoding="utf-8")
    assert change[0] in source
    text = source.replace(*change)
    with pytest.raises(CuvilError, match=rf"rtl: .*@sums.*{why}"):
        hardware(legal.parse(text), {}, "model")

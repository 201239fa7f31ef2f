"""Products in logic, as the technology map of `cuvil synth` makes them: proven equal by Yosys' SAT solver."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cuvil_hw import data
from cuvil_hw.adapters.streaming.synthesis.yosys import PRODUCTS

PRODUCT = """module {name}(input signed [{a}:0] a, input signed [{b}:0] b, output signed [{y}:0] y);
  assign y = a * b;
endmodule
"""
PROOF = (
    "read_verilog both.v; proc; techmap -map {map} gate; select -assert-none gate/t:$mul; techmap gate; "
    "miter -equiv -flatten gold gate m; hierarchy -top m; sat -verify -prove trigger 0 m"
)


@pytest.mark.needs("yosys")
@pytest.mark.must_run
@pytest.mark.parametrize(("a", "b", "extra"), [(5, 4, 0), (3, 6, 0), (4, 4, 3), (4, 2, 0), (6, 1, 0), (1, 5, 0)])
def test_rows_are_the_product(a: int, b: int, extra: int, tmp_path: Path) -> None:
    modules = [PRODUCT.format(name=name, a=a - 1, b=b - 1, y=a + b + extra - 1) for name in ("gold", "gate")]
    (tmp_path / "both.v").write_text("".join(modules))
    script = PROOF.format(map=data.folder("rtl") / "synthesis" / PRODUCTS)
    done = subprocess.run(
        ["yosys", "-q", "-p", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr

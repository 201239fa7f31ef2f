"""The worker of a rig (cuvil_hw/runtime/on_board.py) on a simulated board: a bitstream of the program is made and
registered first, as Vivado and a user would do. Needs the pynq package and g++."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pynq complains once that this processor is no board's
    import pynq  # noqa: F401

from cuvil_hw.runtime import artifact, on_board
from sim.pynq.board import SimulatedBoard
from sim.pynq.setting import active, register


def main() -> int:
    program = artifact.read(Path(sys.argv[1]))
    arch = "armv7l" if str(program.manifest.profile.get("part", "")).startswith("xc7") else "aarch64"
    with active(SimulatedBoard(arch=arch)) as board:
        register(board, program)
        return on_board.main()


if __name__ == "__main__":
    sys.exit(main())

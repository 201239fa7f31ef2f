"""Where programs are: on PATH, else among those that came with packages of this Python.

Wheels put programs into the environment's folder of scripts, which is on PATH only while the environment is activated.
"""

from __future__ import annotations

import os
import shutil
import sys

WHEELS = "yowasp-"  # begins the names of programs that come as Python packages of WebAssembly


def search_path() -> str:
    """PATH, then the folder of this Python, into which an environment's packages put their programs."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])


def find(program: str) -> str | None:
    """The file that runs `program` (a name, or an absolute path); None where there is none."""
    return shutil.which(program, path=search_path())

"""Synthesises this project with the Vitis HLS that is on PATH, whatever its generation.

python3 build.py                 run_hls.tcl: by vitis-run (from 2023.2 on), else by vitis_hls (2020.2 to 2024.1)
python3 build.py --component     hls_config.cfg: by v++ and vitis-run (from 2023.2 on)
python3 build.py --cosim         simulates the synthesised Verilog, too: minutes to hours
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

COMPONENT = "hls_component"  # shell.tcl looks for the exported core here, and in the project of run_hls.tcl


def commands(component, cosim):
    """The tool's steps, in order. SystemExit where there is no such tool."""
    if component:
        if not (shutil.which("v++") and shutil.which("vitis-run")):
            raise SystemExit("v++ and vitis-run are not on PATH: source settings64.sh of Vitis 2023.2 or later")
        rest = ["--config", "hls_config.cfg", "--work_dir", COMPONENT]
        steps = ["--csim", None, *(["--cosim"] if cosim else []), "--package"]
        compile_ = ["v++", "-c", "--mode", "hls", *rest]
        return [["vitis-run", "--mode", "hls", s, *rest] if s else compile_ for s in steps]
    if shutil.which("vitis-run"):
        return [["vitis-run", "--mode", "hls", "--tcl", "run_hls.tcl"]]
    if shutil.which("vitis_hls"):
        return [["vitis_hls", "-f", "run_hls.tcl"]]
    raise SystemExit("neither vitis-run nor vitis_hls is on PATH: source settings64.sh of Vitis")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--component", action="store_true", help="the component flow instead of run_hls.tcl")
    parser.add_argument("--cosim", action="store_true", help="simulate the synthesised Verilog, too")
    args = parser.parse_args()
    env = {**os.environ, "CUVIL_COSIM": str(int(args.cosim))}
    for command in commands(args.component, args.cosim):
        print("$", *command, flush=True)
        done = subprocess.run(command, cwd=Path(__file__).resolve().parent, env=env)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())

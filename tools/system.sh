#!/bin/sh
# Checks what pip cannot install: a new enough Python, and the C and C++ compilers that build the cpu target's code and
# the simulators. Installs missing Debian packages where it may; else says what to install. What only `cuvil synth` and
# the simulation of SystemVerilog need is installed too where it may be, and is no error where it may not.
# Usage: system.sh PYTHON [OLDEST]      OLDEST: 3.11 (what compiles models) when left out; 3.10 runs them
set -eu
python=$1
oldest=${2:-3.11}

"$python" -c "import sys; sys.exit(sys.version_info[:2] < tuple(map(int, '$oldest'.split('.'))))" || {
    echo "cuvil-hw needs Python $oldest or newer here, and '$python' is $("$python" --version 2>&1)." \
         "Name another one: make PYTHON=/path/to/python$oldest" >&2
    exit 1
}

missing=
command -v gcc >/dev/null || missing="$missing gcc"
command -v g++ >/dev/null || missing="$missing g++"
"$python" -c 'import venv' 2>/dev/null || missing="$missing python3-venv"
useful=
if [ "$oldest" = 3.11 ]; then
    command -v yosys >/dev/null || useful="$useful yosys"
    command -v make >/dev/null || useful="$useful make"
    command -v qemu-aarch64 >/dev/null || useful="$useful qemu-user"
    command -v perl >/dev/null || useful="$useful perl"
    [ -e /usr/include/lz4.h ] || useful="$useful liblz4-dev"
    [ -e /usr/include/zlib.h ] || useful="$useful zlib1g-dev"
fi
[ -z "$missing$useful" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q
    # shellcheck disable=SC2086  # lists of package names
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing $useful </dev/null
elif [ -n "$missing" ]; then
    echo "These programs are missing:$missing. Install them (Debian: sudo apt-get install$missing) and run make again." >&2
    exit 1
else
    echo "Without these, tests of synthesis, of SystemVerilog and of other processors are skipped:$useful (Debian: sudo apt-get install$useful)."
fi

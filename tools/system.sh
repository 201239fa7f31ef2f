#!/bin/sh
# Checks what pip cannot install: a new enough Python, and the C and C++ compilers that build the cpu target's code and
# the simulators. Installs missing Debian packages where it may; else says what to install.
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
[ -z "$missing" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q
    # shellcheck disable=SC2086  # a list of package names
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing </dev/null
else
    echo "These programs are missing:$missing. Install them (Debian: sudo apt-get install$missing) and run make again." >&2
    exit 1
fi

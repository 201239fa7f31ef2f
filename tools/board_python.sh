#!/bin/sh
# Prints a Python 3.10, the version that images of Zynq boards have, where one is found: on PATH, or where pyenv, uv and
# conda keep theirs. Exit code 1 where there is none.
set -eu
for python in python3.10 \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.10.*/bin/python3.10 \
    "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/uv/python}"/cpython-3.10*/bin/python3.10 \
    "${CONDA_PREFIX:-/nonexistent}"/envs/*/bin/python3.10 \
    /opt/python/cp310-cp310/bin/python3.10 \
    /usr/local/bin/python3.10; do
    # A shim of pyenv is there for versions that aren't chosen, too: only running it tells.
    if "$python" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 10))' >/dev/null 2>&1; then
        command -v "$python"
        exit 0
    fi
done
exit 1

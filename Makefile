# Every habit of the project. Each target makes the environment that it needs; nothing has to be installed before
# but python3 (3.11 or newer) with pip.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(PYTHON) -m pip --disable-pip-version-check --python $(BIN)/python install --quiet --no-compile
PINS   := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint types golden bench size clean

help:      ## list the targets
	@sed -n 's/^\([a-z]*\): .*## */\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
	    printf '  make %-8s %s\n' "$$name" "$$text"; done

venv: $(VENV)/.dev ## make .venv with all that the tests, benchmarks and examples need

demo: $(VENV)/.run ## train a CNN on scanned digits, compile it for the PYNQ-Z2, run it on the simulator
	$(BIN)/python examples/digits_zynq.py

test: $(VENV)/.dev ## run every test (ARGS='-k name' to choose)
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev ## ruff
	$(BIN)/ruff check .

types: $(VENV)/.dev ## mypy --strict
	$(BIN)/mypy --strict cuvil cuvil_hw

golden: $(VENV)/.dev ## rewrite tests/golden from what is generated now; read the diff before committing
	$(BIN)/python -m pytest --update-golden $(ARGS)

bench: $(VENV)/.dev ## run the benchmarks against peers; each prints ratios
	set -e; for bench in benchmarks/*.py; do $(BIN)/python "$$bench"; done

size:      ## lines of code by folder, adapter and language table
	@$(PYTHON) tools/size.py

clean:     ## remove .venv, caches and build results
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two layers in one environment: what users install (enough for the demo), then what only development needs.
# Neither is redone until the pins change.
$(VENV)/.run: $(PINS) tools/system.sh
	sh tools/system.sh $(PYTHON)
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PIP) pip -c constraints.txt
	$(PIP) -e '.[all,examples]' -c constraints.txt
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -e '.[dev]' -c constraints.txt
	touch $@

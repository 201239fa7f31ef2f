# Every habit of the project. Each target makes the environment that it needs; nothing has to be installed before
# but python3 (3.11 or newer) with pip. The board tests take a Python 3.10, as boards have it, where there is one.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(PYTHON) -m pip --disable-pip-version-check --python $(BIN)/python install --quiet --no-compile
PINS   := pyproject.toml constraints.txt
# What a board has: pynq and the runtime on an old Python and NumPy (constraints-pynq.txt); no compiler.
BOARD  := .venv-pynq
BOARD_PYTHON ?= $(shell sh tools/board_python.sh || echo $(PYTHON))

# A file stays with one worker, as its fixtures are costly; conftest.py puts the long ones first.
SPREAD := --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: demo-ecp5 bench-cost docs site coverage conformance help venv demo test suite board lint types golden docs-ops docs-torch docs-targets bench replay same-bits qdq-fuzz float-models compilers fuzz captured architectures size clean

help:      ## list the targets
	@sed -n 's/^\([a-z-]*\): .*## */\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
	    printf '  make %-12s %s\n' "$$name" "$$text"; done

venv: $(VENV)/.dev ## make .venv with all that the tests, benchmarks and examples need

demo: $(VENV)/.run ## train a CNN on scanned digits, compile it for the PYNQ-Z2, run it on the simulator
	$(BIN)/python examples/digits_zynq.py

demo-ecp5: $(VENV)/.dev ## the same for a Lattice ECP5 board: the bitstream by open tools, every test image over the simulated serial line
	$(BIN)/python examples/digits_zynq.py --target ulx3s-85f --interface rtl-serial --out build/digits_ecp5

# Chosen tests run in one process and without the board tests.
ifeq ($(strip $(ARGS)),)
test: board
JOBS ?= auto
else
JOBS ?= 0
endif
test: suite ## run every test (ARGS='-k name' to choose, JOBS=4 at once)

suite: $(VENV)/.dev ## the same without the board tests
	$(BIN)/python -m pytest -n $(JOBS) $(SPREAD) $(ARGS)

conformance: $(VENV)/.dev ## run every case of which `make test` runs an even share
	$(BIN)/python -m pytest -n $(or $(JOBS),auto) $(SPREAD) tests/conformance tests/robustness tests/adapters/streaming --full $(ARGS)

board: $(VENV)/.dev $(BOARD)/.dev ## run the runtime and the board's driver on Python 3.10, NumPy 1.21 and pynq (BOARD_PYTHON=…)
	CUVIL_COMPILER=$(abspath $(BIN))/python $(BOARD)/bin/python -m pytest tests/pynq

lint: $(VENV)/.dev ## ruff: faults and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy --strict
	$(BIN)/mypy --strict cuvil cuvil_hw

golden: $(VENV)/.dev ## rewrite tests/golden from what is generated now; read the diff before committing
	$(BIN)/python -m pytest --update-golden $(ARGS)

docs: docs-ops docs-torch docs-targets site ## rewrite every generated page from its run, then build the site

site: $(VENV)/.dev ## the documentation as a site in out/site; a dead link fails
	$(BIN)/python tools/site.py out/site

coverage: $(VENV)/.dev ## which lines the tests of the rooms reach (ARGS=tests/passes to choose); conformance left out
	$(BIN)/python -m pytest -q -n $(or $(JOBS),auto) $(SPREAD) --cov=cuvil_hw --cov-report=term --cov-report=html:out/coverage \
	    $(or $(ARGS),--ignore=tests/conformance --ignore=tests/pynq --ignore=tests/robustness)

docs-ops: $(VENV)/.dev ## rewrite docs/ops.md from a run of ONNX's node tests
	$(BIN)/python -m pytest tests/conformance/test_onnx_suites.py -q --update-golden -k docs

docs-torch: $(VENV)/.dev ## rewrite docs/torch-ops.md from a run of PyTorch's own suites
	$(BIN)/python -m pytest tests/conformance/test_torch_suites.py -q --update-golden -k docs

docs-targets: $(VENV)/.dev ## rewrite docs/targets.md from a run of small networks on every device
	$(BIN)/python -m pytest tests/conformance/test_targets.py -q --update-golden

bench: $(VENV)/.dev ## run the benchmarks against peers; each prints ratios, benchmarks/history.jsonl keeps them
	$(BIN)/python tools/bench.py $(ARGS)

bench-cost: $(VENV)/.dev ## the FPGA cost model against counts by Yosys and reports of others, on rows that nothing was fitted to
	$(BIN)/python benchmarks/cost_designs.py
	$(BIN)/python benchmarks/cost_model.py

captured: $(VENV)/.dev ## change what 500 random functions read from outside; none may be stale (ARGS='--seeds 50')
	$(BIN)/python -m tests.support.captured_random $(ARGS)

replay: $(VENV)/.dev ## compile fixed programs for every target and compare what is generated with a table (ARGS='--against main')
	$(BIN)/python tools/replay.py $(ARGS)

same-bits: $(VENV)/.dev ## compile seven models for every device and compare all bits (ARGS='--only jets')
	$(BIN)/python tools/same_bits.py $(ARGS)

qdq-fuzz: $(VENV)/.dev ## 2,000 random QDQ graphs with ties of rounding against exact arithmetic (ARGS='--targets cpu --graphs 40')
	$(BIN)/python tools/qdq_fuzz.py $(ARGS)

float-models: $(VENV)/.dev ## run six float models on every device and print their largest errors (ARGS='--only lstm')
	$(BIN)/python tools/float_models.py $(ARGS)

compilers: $(VENV)/.dev ## 200 shapes of small integer reductions through every C compiler that is found, at every level
	CUVIL_TEST_SHAPES=200 $(BIN)/python -m pytest -q tests/conformance/test_compilers.py

fuzz: $(VENV)/.dev ## damaged inputs until something other than a CuvilError comes out (ARGS='onnx --count 20000 --seed 3')
	$(BIN)/python tools/fuzz.py $(ARGS)

architectures: $(VENV)/.dev ## compile small models of many architectures and compare them with PyTorch (ARGS='--only Bert')
	$(BIN)/python tools/architectures.py $(ARGS)

size:      ## lines of code by folder, adapter and language table
	@$(PYTHON) tools/size.py

clean:     ## remove the environments, caches and build results
	rm -rf $(VENV) $(BOARD) build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis
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

$(BOARD)/.dev: pyproject.toml constraints-pynq.txt tools/system.sh
	sh tools/system.sh $(BOARD_PYTHON) 3.10
	$(BOARD_PYTHON) -m venv --clear --without-pip $(BOARD)
	$(PYTHON) -m pip --disable-pip-version-check --python $(BOARD)/bin/python install --quiet --no-compile \
	    -e '.[zynq]' pytest -c constraints-pynq.txt
	touch $@

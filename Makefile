# `make demo` and `make test` need Python 3.11 or later and nothing else: .venv is made by the first target that needs it.

PYTHON ?= python3
# One more than the two cores this is tuned for: some tests wait, for a process that hangs or a compiler.
WORKERS ?= 3
FUZZ_SECONDS ?= 3600
TORCH ?= 2.13.0
# Of tests/arm/machines.py.
MACHINE ?= neoverse-n1

BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick test-bare test-slow test-torch test-cuda-text test-devices test-arm test-wheel lint types docs fuzz fuzz-opts fuzz-plans fuzz-torch bench clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# The stamp is written last, so an interrupted installation is begun again.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tilewright needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m compileall -q tilewright  # the package starts from bytecode even where Python may not write it
	@touch $@

demo: $(INSTALLED) ## one computation, from graph to machine code to result; a network learns digits; a model answers a question
	$(BIN)/python examples/demo.py

# mypy is one process, and runs beside the tests.
test: lint ## lint, types and every test that is not slow and needs no torch
	@$(MAKE) --no-print-directory --jobs 2 types test-quick

test-quick: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow and not torch' -q

# About 300 tests, in half a minute: those that depend on what the machine has.
test-bare: $(INSTALLED) ## the tests that a machine without drivers and compilers could fail, as on such a machine
	$(BIN)/python -m tests.bare -n $(WORKERS)

test-slow: $(INSTALLED) ## the tests marked slow
	$(BIN)/python -m pytest -n $(WORKERS) -m slow -q

# Which build of torch comes is pip's choice, by its own settings (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL); any will do.
# Only files that have such tests are given: collecting all tests takes as long as running these. One thread of torch for each
# worker: its threads wait by turning in a loop.
TORCH_TESTS = $(shell grep -rl --include='test_*.py' 'mark\.torch' tests)
test-torch: $(INSTALLED) ## what is compared with torch, which is installed for it: the op table, optimisers, DLPack, language models
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) "transformers>=5"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m 'torch and not slow' -q $(TORCH_TESTS)

test-cuda-text: $(INSTALLED) ## the CUDA text of the op table, compiled by NVRTC, which needs no card
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cuda]'
	$(BIN)/python -m tests.backends.cuda_texts --quick --workers $(WORKERS)
	$(BIN)/python -m pytest -q tests/backends/test_cuda_text.py tests/backends/test_cuda_device.py

test-devices: $(INSTALLED) ## the op table over all dtypes, edge values and tests/issues, whole on every device that is here
	TILEWRIGHT_WHOLE_TABLE=1 $(BIN)/python -m pytest -n $(WORKERS) -q tests/ops/test_table.py -k test_value
	TILEWRIGHT_WHOLE_TABLE=1 $(BIN)/python -m pytest -n $(WORKERS) -q tests/issues tests/backends/test_c_style.py

# The emulator, Debian's Python for ARM and wheels are fetched once, into the user's cache folder; root is not needed.
test-arm: $(INSTALLED) ## a sample of the tests of the CPU device on an emulated 64-bit ARM, MACHINE (slow)
	$(BIN)/python -m tests.arm.run --machine $(MACHINE)

# pip fetches the dependencies, or takes them from its cache.
test-wheel: $(INSTALLED) ## builds the wheel, installs it into a new virtual environment and runs the README's example there
	$(BIN)/python -m tests.wheel

lint: $(INSTALLED) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED) ## mypy --strict on the package
	$(BIN)/mypy --strict -p tilewright

docs: $(INSTALLED) ## writes the pages of docs/ that are made from the code
	$(BIN)/python -m tools.docs

fuzz: $(INSTALLED) ## fresh random expressions on every device, for FUZZ_SECONDS
	$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS)

fuzz-opts: $(INSTALLED) ## fresh random kernels with random opts, for FUZZ_SECONDS
	$(BIN)/python -m tests.fuzz.opts --seconds $(FUZZ_SECONDS)

fuzz-plans: $(INSTALLED) ## fresh random programs with every plan of their kernels, for FUZZ_SECONDS
	$(BIN)/python -m tests.fuzz.plans --seconds $(FUZZ_SECONDS)

fuzz-torch: $(INSTALLED) ## fresh random programs beside torch, values and gradients, for FUZZ_SECONDS
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.beside_torch --seconds $(FUZZ_SECONDS)

bench: $(INSTALLED) ## compile time per stage, with an empty cache and with a full one
	$(BIN)/python -m bench

clean: ## remove what make and the tools made
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

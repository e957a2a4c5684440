# Everything happens in .venv; a second run installs nothing unless pyproject.toml or
# constraints.txt changed. `make test` is what CI runs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# What only checks and tests need is not compiled beforehand: they load a quarter of it.
PIP_TO_TEST := $(PIP) --no-compile
MANIFEST := pyproject.toml constraints.txt
# A worker per core. Each begins with a run of whole files, so that what a file's tests share is made
# once; who has ended takes over half of what another still has before it.
PARALLEL := --numprocesses auto --maxprocesses 8 --dist worksteal
EXAMPLE := examples/llama-3.1-8b-dgx-h100.yaml

.DELETE_ON_ERROR:
.PHONY: help lock plan test run-tests frameworks soak format-check lint types layers format bench bench-models bench-energy bench-phantom bench-colocation models docs docs-serve figures gpu gpu-ready gpu-tests gpu-phantom gpu-energy gpu-colocation gpu-steps clean

help:
	@echo 'make plan     set up, then plan Llama-3.1-8B on one node of eight H100'
	@echo 'make test     set up, then run every check that CI runs'
	@echo 'make frameworks  try exported files with the parsers and launchers of frameworks'
	@echo 'make soak     run the tests with all examples of properties and larger samples, then an'
	@echo '              hour of drawn inputs, jobs, kills and attacks (SOAK_ARGS="--seed 2 --minutes 9")'
	@echo 'make format   rewrite the code as the format check wants it'
	@echo 'make bench    print the benchmark table'
	@echo 'make bench-models  compare captured models with known counts'
	@echo 'make bench-energy  compare predicted power and energy with measured'
	@echo 'make bench-phantom  compare phantom with tensor parallelism, over links as root'
	@echo 'make bench-colocation  measure several processes on a device against one'
	@echo 'make models   record the built-in models of other fields anew'
	@echo 'make lock     write lock-base.txt and lock-dev.txt anew, after constraints.txt changed'
	@echo 'make docs     build the site of the documentation in build/docs; broken links fail'
	@echo 'make docs-serve  build it and serve it on http://127.0.0.1:8000'
	@echo 'make figures  remake every table and picture of the documentation'
	@echo 'make gpu      on an accelerator, in parts that can run alone: gpu-tests, gpu-phantom (kernels),'
	@echo '              gpu-energy (by stage), gpu-colocation (two processes on a device), gpu-steps (plain steps)'
	@echo 'make clean    remove what make and the tools wrote'

# The versions of constraints.txt with the hashes of their files, for every platform.
LOCK := uv pip compile pyproject.toml --quiet --constraint constraints.txt --generate-hashes \
	--universal --python-version 3.11 --no-annotate --no-emit-index-url --no-emit-find-links \
	--custom-compile-command 'make lock'

lock: $(VENV)/.base-installed
	$(PIP) uv
	$(BIN)/$(LOCK) --output-file lock-base.txt
	$(BIN)/$(LOCK) --extra dev --output-file lock-dev.txt

plan: $(VENV)/.base-installed
	$(BIN)/wattree plan $(EXAMPLE)

# The checks before pytest may run side by side (make -j). Torch is installed after them: pip must
# not change the environment while they read it. Types take a minute of one core, so they are
# checked while tests run. These also build the wheel and try it alone (tests/packaging/test_wheel.py).
test: format-check lint layers
	@$(MAKE) --no-print-directory $(VENV)/.test-torch-installed
	@$(MAKE) --no-print-directory --jobs=2 types run-tests

run-tests: $(VENV)/.test-torch-installed
	$(BIN)/python -m pytest $(PARALLEL) --durations 30 --durations-min 1 $(PYTEST_ARGS)

# Exported files with the frameworks' own parsers and launchers; needs their packages.
frameworks: $(VENV)/.test-torch-installed
	$(PIP) 'wattree[test-frameworks]'
	$(PIP) --no-deps --requirement tests/frameworks/no-deps.txt
	$(BIN)/python -m pytest --frameworks tests/frameworks $(PYTEST_ARGS)

# The same tests with all examples of properties and the larger samples: an hour of a core. Then
# drawn inputs, jobs, kills and attacks; the same seed goes on where it was (docs/how-it-is-tested.md).
soak: $(VENV)/.test-torch-installed
	$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile soak $(PYTEST_ARGS)
	$(BIN)/python -m tests.soak $(SOAK_ARGS)

format-check: $(VENV)/.dev-installed
	$(BIN)/ruff format --check --quiet .

lint: $(VENV)/.dev-installed
	$(BIN)/ruff check --quiet .

types: $(VENV)/.dev-installed
	$(BIN)/mypy

layers: $(VENV)/.dev-installed
	$(BIN)/lint-imports

format: $(VENV)/.dev-installed
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

bench: $(VENV)/.base-installed
	$(BIN)/python -m benchmarks.main

bench-models: $(VENV)/.test-torch-installed
	$(BIN)/python -m benchmarks.models

bench-energy: $(VENV)/.dev-installed
	$(BIN)/python -m benchmarks.energy

# Six minutes on a quiet machine, and root, for the sections over links.
bench-phantom: $(VENV)/.test-torch-installed
	$(BIN)/python -m benchmarks.phantom

# A quarter of an hour on a quiet machine, and root, for bytes between devices.
bench-colocation: $(VENV)/.test-torch-installed
	$(BIN)/python -m benchmarks.colocation

# An hour. The graphs change when the recorder, the conversion or a module does.
models: $(VENV)/.test-torch-installed
	$(BIN)/python -m wattree.capture.zoo
	$(BIN)/python docs/model_tables.py

docs: $(VENV)/.dev-installed
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning -c docs . build/docs
	@echo 'build/docs/index.html'

# The search needs a server: browsers refuse pages from files what it fetches.
docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs 8000

# A quarter of an hour. `python docs/figures.py --quick` remakes what takes seconds alone.
figures: $(VENV)/.dev-installed
	$(BIN)/python docs/figures.py

# pytest exits with 5 where no test is marked: nothing to run is no failure here.
# Where there is an accelerator, three minutes of training and the kernels of phantom layers follow,
# then half an hour with several processes on it; results are written to benchmarks/results.
# Elsewhere nothing is.
# Parts of `make gpu`, each of which can run alone and ends after nine minutes at most. Nothing is
# installed for them, as such machines often have no network and a torch of their own:
# `make gpu GPU_PYTHON=python3` takes another interpreter.
GPU_PYTHON ?= $(BIN)/python
GPU_PARTS := gpu-tests gpu-phantom gpu-energy gpu-colocation gpu-steps
ON_GPU = PYTHONPATH=src timeout 540 $(GPU_PYTHON)

gpu: $(GPU_PARTS)

gpu-ready:
	@PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_ready.py

gpu-tests: gpu-ready
	$(ON_GPU) -m pytest -m gpu $(PYTEST_ARGS) || { code=$$?; [ $$code -eq 5 ] || exit $$code; }

gpu-phantom gpu-energy gpu-colocation gpu-steps: gpu-ready
	$(ON_GPU) -m benchmarks.$(subst -,_,$@)

clean:
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Wattree needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1 || true);" \
	    "name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; \
	  rm -rf $(VENV); exit 1; }

# Editable, so that a changed source file needs no new installation. The groups are installed one
# after the other, because two pips in one environment disturb each other. Extras are those of the
# installed Wattree, which need not be built again for them.
$(VENV)/.base-installed: $(MANIFEST) | $(BIN)/pip
	@echo 'installing Wattree into $(VENV) …'
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev-installed: $(VENV)/.base-installed
	@echo 'installing what the checks need …'
	$(PIP_TO_TEST) 'wattree[dev]'
	@touch $@

# Constraints choose torch's version; of its builds pip takes the one for CPU where the index has it.
$(VENV)/.test-torch-installed: $(VENV)/.dev-installed
	@echo 'installing torch, which differential tests compare with …'
	$(PIP_TO_TEST) 'wattree[test-torch]'
	@# MLCommons' reader of traces, to compare with. What it depends on besides protobuf (a notebook
	@# server among it) is for its plots.
	$(PIP) --no-deps mlc-chakra
	@touch $@

# Each target first creates .venv and installs its dependencies in the versions of constraints.txt.
# PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
KERNELS := $(wildcard src/statemix/ops/cpu/*.h src/statemix/ops/cpu/*.cpp)
PROJECT := pyproject.toml setup.py constraints.txt $(KERNELS)

.PHONY: demo test lint format faults mutants clean

demo: $(VENV)/installed
	$(BIN)/statemix demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal --durations 10

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(KERNELS)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(KERNELS)

# Break the code in known ways and check that the tests notice every fault (about half an hour).
faults: $(VENV)/installed-dev
	$(BIN)/python tests/faults/run.py

# Change the code at SAMPLE random places, drawn with SEED, and check that the tests notice (about half
# a minute each; interrupted, the same command continues).
SAMPLE ?= 600
SEED ?= 1
mutants: $(VENV)/installed-dev
	$(BIN)/python tests/faults/mutants.py --sample $(SAMPLE) --seed $(SEED) $(MUTANTS)

clean:
	rm -rf $(VENV) build demo src/statemix/ops/cpu/kernels.so

# A failed venv leaves an interpreter without pip: remove it, or make would consider the target built.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "statemix needs Python 3.11 or newer: make PYTHON=python3.11 ..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "statemix needs venv with pip: install python3-venv (Debian, Ubuntu), then repeat" >&2; \
	  exit 2; }

$(VENV)/installed: $(VENV)/bin/python $(PROJECT)
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

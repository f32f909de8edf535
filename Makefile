# `make demo` and `make test` need nothing but Python >= 3.11: each makes .venv by itself, once.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/ready

.PHONY: paper demo test test-slow test-gpu test-browser test-lowest faults fuzz mutants mutants-random bench docs dist test-dist check format clean

demo: $(READY)
	GOMP_SPINCOUNT=2000 TORCH_MKLDNN_MATMUL_MIN_SIZE=1000000000 $(PY) -m benchmarks.demo

# One process per core; more threads than that would only get into each other's way.
# Compiled tests are kept, also where the environment asks for none: each process would compile them anew, for 8 s.
test: $(READY) check
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(PY) -m pytest -q -n auto --dist loadfile --no-loadscope-reorder

test-slow: $(READY)
	$(PY) -m pytest -q -m slow

test-gpu: $(READY)
	$(PY) -m pytest -q -m gpu

# Needs Chromium, which is no package of Python: on Debian, apt-get install chromium-headless-shell.
test-browser: $(READY)
	$(PY) -m pytest -q -rs -m browser

# All lower bounds of pyproject.toml at once, in a second environment; torch is the one of requirements.lock.
LOWEST := .venv-lowest/bin/python
test-lowest:
	$(PYTHON) -m venv --clear .venv-lowest
	$(LOWEST) -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' requirements.lock)
	$(LOWEST) tests/lowest.py > .venv-lowest/lowest.txt
	$(LOWEST) -m pip install --quiet --disable-pip-version-check -r .venv-lowest/lowest.txt
	PYTHONPATH=src OMP_NUM_THREADS=1 $(LOWEST) -m pytest -q -n auto --dist loadfile --no-loadscope-reorder

# One thread: forked processes, which are killed here, would wait for those of their parent.
faults: $(READY)
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -m fault

# Damages real files at random; FUZZ_SECONDS=3600 goes on for an hour. What ends a reader is kept as a fixture.
FUZZ_SECONDS ?= 60
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(PY) tests/fuzz/run.py --seconds $(FUZZ_SECONDS)

mutants: $(READY)
	$(PY) tests/mutants/run.py kept

# MUTANTS="--seed 1 --count 100" draws others.
mutants-random: $(READY)
	$(PY) tests/mutants/run.py random $(MUTANTS)

bench: $(READY)
	$(PY) -m benchmarks speed --out bench-output --force

# The paper, build/paper/paper.pdf, with every number from results/; needs typst, which is no dependency: pip install typst.
paper: $(READY)
	$(PY) -m benchmarks.paper

# The site, in build/docs: warnings are errors, and a link that leads nowhere is a warning.
docs: $(READY)
	$(PY) -m sphinx -q -E -W --keep-going -n -b html -c docs -d build/docs-cache . build/docs
	@echo "Open this page in a browser: build/docs/index.html"

# The sdist and the wheel, in dist/.
dist: $(READY)
	rm -rf build dist
	$(PY) -c 'from setuptools import build_meta as build; build.build_sdist("dist"); build.build_wheel("dist")'

# The wheel in empty environments, with the core dependencies alone: make test-dist PYTHONS="python3.11 python3.12"
PYTHONS ?= $(PYTHON)
test-dist: dist
	VIEWFUSE_PYTHONS="$(PYTHONS)" $(PY) -m pytest -q -rs -m slow tests/test_packaging.py

check: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean:
	rm -rf .venv .venv-lowest build dist demo-output bench-output .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch comes first and alone: with the exact version in place nothing later fetches another build of it.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "viewfuse needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo 'Setting up .venv, once: this takes a few minutes, and about 2 GB of disk.'
	$(PYTHON) -m venv --clear .venv
	$(PY) -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' requirements.lock)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

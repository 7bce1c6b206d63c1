# bayescore: `make demo` shows it, `make test` checks all of it. Both set up .venv on their own.

PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 2
SEED ?= 0
MUTATIONS ?= 10000
PROCESSES ?= 200
KILLS ?= 200

BIN     := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST  := OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n $(WORKERS)
comma   := ,
heading  = @printf '\n== %s ==\n' "$(1)"

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow fuzz kill-test release-check lint docs unit clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-13s %s\n", $$1, $$2 }'
	@echo "Variables: PYTHON=$(PYTHON) (3.11 or newer), VENV=$(VENV), WORKERS=$(WORKERS) (test processes),"
	@echo "           SEED=$(SEED), MUTATIONS=$(MUTATIONS), PROCESSES=$(PROCESSES) (make fuzz), KILLS=$(KILLS) (make kill-test)"

demo: $(VENV)/.installed-demo ## small networks by AdamW and by the default, tables and demo/demo.png; a minute, downloads no data
	$(call heading,examples/demo.py)
	$(BIN)/python examples/demo.py

test: lint docs unit ## every check: lint, format, types, import layers, docs, tests

test-slow: $(VENV)/.installed-slow ## the tests that take minutes, with Lightning, Hugging Face's Trainer, Ray and Optuna
	$(call heading,pytest -m slow)
	$(PYTEST) -m slow

fuzz: $(VENV)/.installed-dev ## 10,000 damaged files and wrong requests, and 200 as processes of their own: a sentence for each
	$(call heading,tests/fuzz.py)
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python tests/fuzz.py --count $(MUTATIONS) --processes $(PROCESSES) --seed $(SEED)

kill-test: $(VENV)/.installed-dev ## 200 times kill -9 at a random moment: nothing lost, the same numbers
	$(call heading,tests/kills.py)
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python tests/kills.py --kills $(KILLS) --seed $(SEED)

release-check: $(BIN)/python ## before a release: wheel and sdist, lowest versions, Python 3.12 and 3.13, in new environments; gigabytes
	$(call heading,tests/release.py)
	$(BIN)/python tests/release.py

lint: $(VENV)/.installed-dev ## ruff, mypy, import-linter
	$(call heading,ruff check)
	$(BIN)/ruff check .
	$(call heading,ruff format --check)
	$(BIN)/ruff format --check .
	$(call heading,mypy)
	$(BIN)/mypy
	$(call heading,import layers)
	$(BIN)/lint-imports

docs: $(VENV)/.installed-dev ## build the documentation site into site/
	$(call heading,mkdocs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

unit: $(VENV)/.installed-dev ## the tests that take seconds, and the doctests
	$(call heading,pytest)
	$(PYTEST)

clean: ## remove what was built and cached; keeps the virtual environment
	rm -rf build demo dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src lab tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# mkdocs gets no --quiet above: it would hide from --strict the warnings that --strict fails on.

# A stamp is older than pyproject.toml or constraints.txt exactly when the installation is out of date.
$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	$(call heading,install .[data$(comma)plot] (torch is large: this takes minutes the first time))
	$(INSTALL) -e '.[data,plot]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml lab/pyproject.toml constraints.txt | $(BIN)/python
	$(call heading,install .[dev] and the lab (torch is large: this takes minutes the first time))
	$(INSTALL) -e '.[dev]' -e ./lab
	@touch $@

$(VENV)/.installed-slow: $(VENV)/.installed-dev
	$(call heading,install .[lightning$(comma)ray$(comma)tensorboard$(comma)transformers] and the lab with Optuna)
	$(INSTALL) -e '.[lightning,ray,tensorboard,transformers]' -e './lab[tuning]'
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "There is no '$(PYTHON)' here: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "bayescore needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1): make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

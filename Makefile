# Needs Python 3.11 or newer (with venv) and make; fetches the rest from the package index into $(VENV).
#
#   make search MODEL=model.json CLUSTER=cluster.yaml ARGS="--target megatron -o plan.json"
#   make test

PYTHON ?= python3
VENV ?= .venv
MODEL ?= examples/profiled-gpt.json
CLUSTER ?= examples/cluster.yaml
# The example was measured on a V100, which has no bf16.
ARGS ?= --global-batch-size 1024$(if $(filter examples/profiled-gpt.json,$(MODEL)), --precision fp16)

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints/tests.txt
PYTEST := $(BIN)/python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help search test test-slow test-consumers bench lint format clean distclean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 18

# Each stamp is made once, and again when pyproject.toml or the pinned versions change.
# pip is the last thing that venv makes: where it is missing, an earlier attempt was cut short.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints/tests.txt | $(VENV)/bin/pip
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints/tests.txt | $(VENV)/bin/pip
	$(PIP_INSTALL) --editable ".[dev]"
	@touch $@ $(VENV)/.installed

.venv: $(VENV)/.installed-dev  ## the virtual environment with everything for development
.PHONY: .venv

search: $(VENV)/.installed  ## find the best plan for MODEL on CLUSTER; ARGS are further options
	$(BIN)/planner search $(MODEL) $(CLUSTER) $(ARGS)

test: $(VENV)/.installed-dev  ## the default tests, then lint and types
	$(PYTEST)
	@$(MAKE) --no-print-directory lint

# pytest exits with 5 when no test carries the markers.
test-slow: $(VENV)/.installed-dev  ## the tests that take longer
	$(PYTEST) -m "slow and not consumer and not gpu" || [ $$? -eq 5 ]

test-consumers: $(VENV)/.installed-dev  ## programs that read our exports, and accelerators, where present
	$(PYTEST) -m "consumer or gpu" || [ $$? -eq 5 ]

bench: $(VENV)/.installed-dev  ## run the benchmarks; also writes build/bench.json
	$(BIN)/python -m tests.bench

lint: $(VENV)/.installed-dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev  ## rewrite the sources in the common format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean:  ## remove what builds and tests leave behind
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find hardware costmodels planner tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## also remove the virtual environment
	rm -rf $(VENV)

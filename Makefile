# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Both make .venv themselves; nothing else is needed but Python ≥ 3.11.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/python -m uv pip install --quiet --python $(BIN)/python --constraint constraints.txt
WORKERS ?= auto

.PHONY: help demo test check format bench soak clean
.DEFAULT_GOAL := help

help: ## what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/uv: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Bough needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: PYTHON=python3.12 make $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "venv is missing; on Debian: apt-get install -y python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@touch $@

$(VENV)/.demo: $(BIN)/uv pyproject.toml
	@$(UV) -e .
	@touch $@

$(VENV)/.test: $(BIN)/uv pyproject.toml
	@$(UV) -e ".[test]"
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo ## a session killed by kill -9 in mid-turn goes on in a new process
	@$(BIN)/python examples/own_loop.py

test: $(VENV)/.test ## every test, on every store
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(VENV)/.test ## format, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.test ## put the code in order
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.test ## Bough against the bare driver, in one run; writes bench/result.json
	@$(BIN)/python -m bench

soak: $(VENV)/.test ## the long forms: fuzz, state machine, kill storms
	@BOUGH_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests -m "soak or not soak"

clean: ## remove what was made
	@rm -rf $(VENV) bench/result.json

# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Both make .venv themselves; nothing else is needed but Python ≥ 3.11.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/python -m uv pip install --quiet --python $(BIN)/python --constraint constraints.txt
WORKERS ?= auto
FRAMEWORKS := .venv-frameworks
ENCRYPTED := .venv-encrypted
QUICK := .venv-quick
SUITES = $(BIN)/python tests/support/run_suites.py $(WORKERS) .=$(BIN)/python plugins/frameworks/tests=$(FRAMEWORKS)/bin/python \
	tests/encrypted=$(ENCRYPTED)/bin/python

# The plugins that are there: a folder that was removed is not installed, and breaks nothing.
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
PROJECTS := pyproject.toml $(PLUGINS:%=%/pyproject.toml)
EXTRAS_postgres := [absurd]
EXTRAS_importers := [redis,zstd]
EXTRAS_frameworks := [langgraph,openai-agents,claude-agent,adk,pydantic-ai]
editable = $(foreach plugin,$(filter $(1:%=plugins/%),$(PLUGINS)),-e "$(plugin)$(EXTRAS_$(notdir $(plugin)))")

.PHONY: help demo compare replay lab export-session quick test deletion check format docs dist bench soak clean
.DEFAULT_GOAL := help

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/uv: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Oakleaf needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: PYTHON=python3.12 make $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "venv is missing; on Debian: apt-get install -y python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@touch $@

$(VENV)/.demo: $(BIN)/uv $(PROJECTS)
	@$(UV) -e ".[cli]" $(call editable,server lab workspace importers record)
	@touch $@

$(VENV)/.test: $(BIN)/uv $(PROJECTS)
	@$(UV) -e ".[prices,anthropic,openai,gemini,yaml,cli]" --group test \
		$(call editable,postgres server lab importers record mcp workspace) $(patsubst %,-e %,$(filter plugins/frameworks,$(PLUGINS)))
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo ## an agent killed inside a refund, resumed, forked, replayed, compared
	@$(BIN)/oakleaf demo $(ARGS)

compare: $(FRAMEWORKS)/.test ## the same agent on LangGraph, OpenAI Agents and Oakleaf, killed inside a refund: how often it pays
	@$(FRAMEWORKS)/bin/python examples/compare/compare.py

# Dry by default: nothing is sent, written or mailed. SESSION may be a bundle file, which is imported under new ids. That the replay
# differs is a result, not a failure of make; a model that gives no answer is one.
SOURCE = $(or $(SESSION_ID),$(SESSION),latest)
replay: $(VENV)/.demo ## SESSION_ID=…|FILE [MODEL=…] [PROMPT=…] [OPTIONS="temperature=0 …"] [FROM_MESSAGE=N] [MODE=dry] [TOOLS="shop.py …"]: execute a session again, without effects
	@$(BIN)/oakleaf replay "$(SOURCE)$(if $(FROM_MESSAGE),@$(FROM_MESSAGE))" --mode "$(or $(MODE),dry)" $(if $(wildcard $(SOURCE)),--new-id) $(if $(MODEL),--model "$(MODEL)") \
		$(foreach tools,$(TOOLS),--set "tools=$(tools)") $(if $(PROMPT),--prompt "$(PROMPT)") $(foreach option,$(OPTIONS),--set "options.$(option)") || [ $$? -eq 1 ]

lab: $(VENV)/.demo ## COHORT="agent:support after:7d" [PROMPT=@new.txt] [MODEL=…] [TOOLS="shop.py …"] [OPTIONS="temperature=0 …"] [GATE="calls:refund > baseline + 5%"] [MAX_COST=5]: what a change would have done
	@$(BIN)/oakleaf lab run "$(or $(COHORT),after:7d)" $(if $(MODEL),--model "$(MODEL)") $(if $(PROMPT),--prompt "$(PROMPT)") \
		$(foreach tools,$(TOOLS),--set "tools=$(tools)") $(foreach option,$(OPTIONS),-o "$(option)") $(if $(GATE),--fail-if "$(GATE)") $(if $(MAX_COST),--max-cost $(MAX_COST)) $(ARGS)

export-session: $(VENV)/.demo ## SESSION_ID=… [OUTPUT=FILE] [FORCE=1]: write a session as a bundle; FORCE overwrites a file
	@$(BIN)/oakleaf export "$(or $(SESSION_ID),$(SESSION),latest)" $(if $(OUTPUT),-o "$(OUTPUT)") $(if $(FORCE),--force)

$(VENV)/.browser: $(VENV)/.test tests/support/browser.py
	@$(BIN)/python tests/support/browser.py
	@touch $@

$(VENV)/.bouncer: $(VENV)/.test tests/support/pgbouncer.py
	@$(BIN)/python tests/support/pgbouncer.py
	@touch $@

$(FRAMEWORKS)/.test: $(BIN)/uv $(PROJECTS) constraints-frameworks.txt
	@$(PYTHON) -m venv $(FRAMEWORKS)
	@$(BIN)/python -m uv pip install --quiet --python $(FRAMEWORKS)/bin/python \
		--constraint constraints-frameworks.txt -e ".[prices,cli]" --group frameworks \
		$(call editable,frameworks) $(patsubst %,-e %,$(filter-out plugins/frameworks plugins/mcp,$(PLUGINS)))
	@$(BIN)/python -m uv pip install --quiet --python $(FRAMEWORKS)/bin/python --no-deps $(patsubst %,-e %,$(filter plugins/mcp,$(PLUGINS)))
	@touch $@

# apsw-sqlite3mc takes the place of apsw, which our own requirements name: so those are left out and said here.
$(ENCRYPTED)/.test: $(BIN)/uv constraints.txt $(PROJECTS)
	@$(PYTHON) -m venv $(ENCRYPTED)
	@$(BIN)/python -m uv pip install --quiet --python $(ENCRYPTED)/bin/python --constraint constraints.txt \
		apsw-sqlite3mc msgspec click rich "psycopg[binary]" psycopg-pool hypothesis pytest pytest-xdist
	@$(BIN)/python -m uv pip install --quiet --python $(ENCRYPTED)/bin/python --no-deps -e . $(PLUGINS:%=-e %)
	@touch $@

$(QUICK)/.test: $(BIN)/uv $(PROJECTS)
	@$(PYTHON) -m venv $(QUICK)
	@$(BIN)/python -m uv pip install --quiet --python $(QUICK)/bin/python --constraint constraints.txt -e . pytest pytest-xdist hypothesis
	@touch $@

# The library alone: no plugin, no extra. So what needs one is left out by its folder or by its marker.
quick: $(QUICK)/.test ## the library's own tests, in an environment without any plugin or extra
	@$(QUICK)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not extra" tests/*.py $(addprefix tests/,core wire log agent models replay bundle stores)

deletion: $(BIN)/uv ## remove each plugin in turn; the rest installs and works
	@$(BIN)/python tests/support/deletion.py

test: $(VENV)/.test $(VENV)/.browser $(VENV)/.bouncer $(FRAMEWORKS)/.test $(ENCRYPTED)/.test ## everything: the library, each plugin, under every framework, and without each plugin
	@$(SUITES)
	@$(BIN)/python tests/support/deletion.py

check: $(VENV)/.test $(FRAMEWORKS)/.test ## format, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(FRAMEWORKS)/bin/mypy plugins/frameworks/src
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/lint-imports --no-cache --config walls.toml

format: $(VENV)/.test ## put the code in order
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(VENV)/.test $(VENV)/.browser ## the documentation: reference, command line and pictures made anew, then the site in site/
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/pictures.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

DIST ?= dist
dist: $(BIN)/uv ## the wheels of the library and of every plugin, in dist/
	@for project in . $(PLUGINS); do $(BIN)/python -m uv build --quiet --out-dir "$(DIST)" $$project || exit 1; done

bench: $(VENV)/.test $(FRAMEWORKS)/.test ## Oakleaf against the bare driver, in one run; writes bench/result.json
	@$(BIN)/python -m bench

soak: $(VENV)/.test $(VENV)/.browser $(VENV)/.bouncer $(FRAMEWORKS)/.test $(ENCRYPTED)/.test ## the long forms: fuzz, state machine, kill storms
	@OAKLEAF_SOAK=1 $(SUITES)
	@$(BIN)/python tests/support/deletion.py --whole

clean: ## remove what was made
	@rm -rf $(VENV) $(FRAMEWORKS) $(ENCRYPTED) $(QUICK) site dist bench/result.json

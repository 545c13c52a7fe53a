# What a newcomer needs: make demo, make test, make ui. Python 3.11 or newer and make are all it asks for.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
GATE   := $(BIN)/python -m tests.gate
SIZE   ?= full
PROVE   = SQLQUEUE_TEST_SIZE=$(SIZE) SQLQUEUE_TEST_RUN_SECONDS=10800 $(GATE) --title "$@, SIZE=$(SIZE)"
DAGSTER = tests/orchestration tests/definitions tests/demo
STATE  := $(or $(SQLQUEUE_HOME),.sqlqueue)

.DEFAULT_GOAL := help
.PHONY: help demo test steady prove prove-faults prove-model prove-dagster prove-spark prove-browser \
    prove-rest prove-bench classes ui bench lint format lock clean distclean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/demo ## Run the main job on real flights, headless, and check the result (FLIGHTS=2013-01, or all)
	@SQLQUEUE_FANOUT_CRON='* * * * *' $(BIN)/python -m definitions.demo

ui: $(VENV)/demo ## Open the same deployment in the Dagster UI (SQLQUEUE_UI_PORT=3000)
	@$(BIN)/python -m definitions.ui

test: $(VENV)/dev classes ## Run the tests: all that a change can break, in minutes (ARGS=tests/queue)
	$(GATE) -m "not prove" $(ARGS)

steady: $(VENV)/dev classes ## Run `make test` five times beside four busy processes (ROUNDS=5 LOAD=4)
	$(GATE).steady --rounds $(or $(ROUNDS),5) --load $(or $(LOAD),4) -m "not prove" $(ARGS)

prove: prove-faults prove-model prove-dagster prove-spark prove-browser prove-rest prove-bench ## Prove every promise with its whole numbers (SIZE=full; prove-faults, -model, -dagster, -spark, -browser, -rest, -bench)

prove-model: $(VENV)/dev classes
	$(PROVE) tests/statemachine $(ARGS)

prove-spark: $(VENV)/prove
prove-faults prove-spark prove-browser: prove-%: $(VENV)/dev classes
	$(PROVE) tests/$* $(ARGS)

prove-dagster: $(VENV)/dev classes
	$(PROVE) $(DAGSTER) $(ARGS)

# What the other folders have of whole numbers.
prove-rest: $(VENV)/dev classes
	$(PROVE) -m prove $(addprefix --ignore ,tests/faults tests/statemachine tests/spark tests/browser $(DAGSTER)) $(ARGS)

prove-bench: bench

bench: $(VENV)/bench ## Measure every figure, beside other queues too (ARGS=--record writes docs/benchmarks.md)
	$(BIN)/python -m benchmarks $(ARGS)

# Each of many tests starts a JVM of its own: with its classes kept, in half the time. Where they cannot be, it takes longer.
classes: $(VENV)/dev
	@$(BIN)/python -m dagster_sqlqueue.spark.class_cache --if-missing || true

lint: $(VENV)/dev ## Lint, format check, types, and the rules of who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## Pin the newest versions that fit, with hashes (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-strip-extras \
	    --no-emit-index-url --no-emit-find-links --extra demo -o requirements/demo.txt pyproject.toml requirements/build.in
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-strip-extras \
	    --no-emit-index-url --no-emit-find-links --extra dev -c requirements/demo.txt -o requirements/dev.txt pyproject.toml requirements/build.in
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-strip-extras \
	    --no-emit-index-url --no-emit-find-links --extra prove -c requirements/dev.txt -o requirements/prove.txt pyproject.toml requirements/build.in
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-strip-extras \
	    --no-emit-index-url --no-emit-find-links --extra bench -c requirements/dev.txt -o requirements/bench.txt pyproject.toml requirements/build.in

clean: ## Stop the embedded database and remove the state of demo and UI
	@if [ -e "$(STATE)/postgres/postmaster.pid" ]; then $(PYTHON) dagster_sqlqueue/embedded/supervisor.py stop "$(STATE)/postgres"; fi
	rm -rf "$(STATE)/postgres" "$(STATE)"/dagster* "$(STATE)/java" "$(STATE)/output"

distclean: clean ## Remove the virtual environment too
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Bytecode is compiled once: where Python is set not to write it, every start would compile all of Dagster again.
define install
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/$(1).txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib dagster_sqlqueue definitions >/dev/null 2>&1 || true
	@touch $@
endef

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); say make PYTHON=python3.12 …" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo: requirements/demo.txt pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) (once, some minutes) …"
	$(call install,demo)

$(VENV)/dev: requirements/dev.txt pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) (once, some minutes) …"
	$(call install,dev)

# Beside what dev has: it does not install that again.
$(VENV)/prove: requirements/prove.txt pyproject.toml | $(VENV)/dev
	$(call install,prove)

$(VENV)/bench: requirements/bench.txt pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) (once, some minutes) …"
	$(call install,bench)

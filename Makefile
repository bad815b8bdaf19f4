# Everything runs in .venv, set up on first use and again when pyproject.toml changes.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
# Where torch comes from, if not from where pip looks by itself: https://download.pytorch.org/whl/cpu has small builds.
TORCH_INDEX ?=
BIN := $(VENV)/bin
# What builds no engine: the house's own tests, and some rooms'.
QUICK := $(filter-out tests/test_pytest_plugin.py,$(wildcard tests/test_*.py)) tests/base tests/verdict \
	tests/logs --ignore=tests/base/test_assets.py
SET_UP := $(PYTHON) tools/set_up.py $(VENV) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

.DEFAULT_GOAL := help
.PHONY: help demo shell quick test test-all test-engines test-portable lint bench soak docs gpu gpu-engines clean

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

demo: $(VENV)/.ready  ## Set up and replay a scenario: the engine hits a cached prefix, fixed and not.
	@echo "The command is $(BIN)/specdebug; \`make shell\` or \`source $(BIN)/activate\` puts it on your path."
	$(BIN)/specdebug replay scenarios/cache_hit.yaml

shell: $(VENV)/.ready  ## Open a shell that finds the command `specdebug`; `exit` leaves it.
	@. $(BIN)/activate && echo "specdebug is on the path here; exit leaves this shell" && { "$${SHELL:-sh}" || true; }

quick: $(VENV)/.ready-test  ## Run the tests that need no engine: under a minute of processor time.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not gpu and not slow and not engines" $(QUICK)

test: $(VENV)/.ready-test  ## Run the tests that need no GPU and are not slow.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not gpu and not slow and not engines" tests

test-all: $(VENV)/.ready-test  ## Run the slow ones, too.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not gpu and not engines" tests

test-engines: $(VENV)/.ready-test  ## Install SGLang and vLLM for a CPU (into SPECDEBUG_ENGINES, or the cache) and test on them.
	$(BIN)/specdebug engines install sglang==0.5.13 --no-check
	$(BIN)/specdebug engines install sglang==0.5.18 --no-check
	$(BIN)/specdebug engines install sglang==0.5.23 --no-check
	$(BIN)/specdebug engines install vllm==0.32.0 --no-check
	$(BIN)/python -m pytest -q -m engines tests/engines

test-portable: $(VENV)/.ready-test  ## Run what is numerical under other processors' arithmetic; SHORT=1, SETTINGS=24.
	$(BIN)/python tools/portable.py --jobs $(JOBS) $(if $(SHORT),--short) $(if $(SETTINGS),--settings $(SETTINGS))

lint: $(VENV)/.ready-lint  ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy specdebug

bench: $(VENV)/.ready-test  ## Measure: each benchmark prints its table.
	@set -e; for file in benchmarks/*.py; do \
		case $$(basename $$file) in _*) continue;; esac; \
		echo "== $$file"; $(BIN)/python $$file; done

soak: $(VENV)/.ready-test  ## Serve a million decode steps, for hours: no false alarm, no leak; STEPS=100000 for less.
	$(BIN)/python -m benchmarks.soak --steps $(or $(STEPS),1000000) --jobs $(JOBS)

docs: $(VENV)/.ready-docs  ## Make the documents a site, in build/site; every link in it is checked.
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --strict

gpu:  ## Check and time everything on this machine's GPU, with the Python that has torch for it; OUT=folder.
	$(PYTHON) benchmarks/gpu/suite.py $(or $(OUT),gpu-results)

gpu-engines:  ## Run SGLang itself on this machine's GPU; FILES=folder that has it packed; OUT=folder.
	$(PYTHON) benchmarks/gpu/engines.py $(or $(OUT),gpu-engines) $(if $(FILES),--files $(FILES))

clean:  ## Remove the environment and every cache.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml
	@$(SET_UP)
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	@$(SET_UP) test
	@touch $@

$(VENV)/.ready-docs: $(VENV)/.ready-test
	@$(SET_UP) test docs
	@touch $@

$(VENV)/.ready-lint: $(VENV)/.ready-test
	@$(SET_UP) test lint
	@touch $@

# Every target does the set-up it needs, and only when pyproject.toml has changed since.
SHELL := /bin/sh
VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow real model chaos lint bench docs dist-check clean
.DEFAULT_GOAL := test

demo: $(READY)   ## bring the quickstart fleet up on the mock provider, talk to it, take it down
	PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh

test: lint       ## style, types, import rules, and all tests but the slow ones
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow"

test-slow: $(READY)  ## whole fleets killed, stopped and moved at every further point
	$(BIN)/pytest -n 2 --dist loadgroup -m slow

real: $(READY)   ## TileRT's own connector behind the KV gate; REAL_PYTHON=a Python 3.12 with torch and tilert (tests/real)
	$(BIN)/pytest -m real tests/real

model:           ## prove the KV gate's protocol with spin: 3 ranks, 2 requests, crashes (half a minute)
	@command -v spin >/dev/null || { echo "spin is missing: sudo apt-get install spin gcc"; exit 1; }
	sh models/check.sh

chaos: $(READY)  ## kill the money part at every point, over 20 seeds of faults (about 40 minutes; --turns plays half of it)
	$(BIN)/python -m tests.chaos

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## the ratios that docs/performance.md reports
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

docs: $(READY)   ## write the generated reference again
	$(BIN)/python docs/generate_cli.py

dist-check: $(READY)  ## build the wheel and run a fleet with it alone; needs the package index
	.ci/dist-check $(BIN)/python

clean:
	rm -rf $(VENV) .demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml .ci/setup
	.ci/setup $(VENV)

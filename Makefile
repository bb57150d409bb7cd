# One word per job. Everything below makes what it needs; nothing has to be installed first but Python 3.11+.
#   make run PYTHON=/usr/bin/python3.12     makes .venv with that interpreter
#   make run ARGS="--port 8080"             passes options on to `brimful up`
#   make test ARGS="tests/market -x"        passes options on to pytest

BIN := .venv/bin
export PYTHON
unexport MAKEFLAGS

.DEFAULT_GOAL := help
.PHONY: help run test test-engines test-kubernetes test-skypilot test-tutorials test-release check bench oracle docs generate lock clean distclean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

# exec: make's own child is then the server, which Ctrl-C and SIGTERM reach and which stops with 0.
run:  ## start brimful here: API, console and scheduler, on loopback
	@tools/setup.sh run
	@exec $(BIN)/brimful up $(ARGS)

test:  ## all tests
	@tools/setup.sh test
	@tools/setup.sh system
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile $(ARGS)

test-engines:  ## the tests that start Ray and an S3 server, and the journey over three sites
	@tools/setup.sh engines
	@tools/setup.sh system
	$(BIN)/python -m pytest -q -m engines $(ARGS)

test-kubernetes:  ## the Kubernetes engine against a real API server and scheduler, built from source the first time
	@tools/setup.sh kubernetes
	$(BIN)/python -m pytest -q -m kubernetes $(ARGS)

test-skypilot:  ## machines bought through SkyPilot's own API server, on a cloud of sshds on loopback: 20 kills
	@tools/setup.sh skypilot
	@tools/setup.sh system
	$(BIN)/python -m pytest -q -m skypilot $(ARGS)

test-tutorials:  ## two tutorials as their readers walk them, by the clock: on a machine that is much slower they fail
	@tools/setup.sh test
	@tools/setup.sh system
	$(BIN)/python -m pytest -q -m tutorials $(ARGS)

test-release:  ## the wheel on Debian 13 with Python 3.13, in a system that debootstrap makes; as root
	@tools/setup.sh test
	$(BIN)/python -m pytest -q -m release $(ARGS)

check:  ## lint, types, layers and tidiness: under a minute
	@tools/setup.sh dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/tidy tests/test_language.py

bench:  ## benchmarks: a table on screen and in build/bench.md
	@tools/setup.sh test
	$(BIN)/python -m bench $(ARGS)

oracle:  ## trace the configs of tests/accuracy/oracle.csv that have no numbers yet, and compare
	@tools/setup.sh oracle
	PYTHONPATH=.venv/oracle $(BIN)/python -m tools.oracle trace
	$(BIN)/python -m tools.oracle

docs:  ## the documentation, into build/docs
	@tools/setup.sh dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs
	@$(BIN)/python -m tools.try_page build/docs/try || [ "$$CI" != true ]
	@echo "open build/docs/index.html; the page that runs in the browser needs a server:"
	@echo "  python3 -m http.server --bind 127.0.0.1 --directory build/docs"

generate:  ## write generated reference pages and transcripts again
	@tools/setup.sh dev
	$(BIN)/python -m tools.generate

lock:  ## write constraints.txt again from what .venv holds now
	@tools/setup.sh test
	$(BIN)/python -m tools.lock

clean:  ## remove what was built, keep .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests bench tools docs -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove .venv
	rm -rf .venv

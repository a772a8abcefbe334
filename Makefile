# CodeHub. `make help` says what there is.
#
# Each step of an install leaves a stamp in .make/, so that a repeat costs a moment only.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

TOOLS_DIR := $(or $(CODEHUB_TOOLS_DIR),$(if $(filter 0,$(shell id -u)),/var/cache/codehub,$(HOME)/.cache/codehub))
export CODEHUB_TOOLS_DIR := $(TOOLS_DIR)
# Most of a start is reading modules: it is not to be compiling them, each time anew.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# On two cores. Most tests wait as much as they compute, so that four keep both busy.
WORKERS := 4
TESTS := $(PYTEST) -n $(WORKERS) --no-loadscope-reorder
# Ten people and every flood: nothing else runs beside it.
SOAK := tests/e2e/test_soak.py
WEB_SOURCES := $(shell find web -type f -not -path 'web/node_modules/*' -not -path 'web/dist/*' 2>/dev/null)
say = @printf '\033[1m==> %s\033[0m\n' "$(1)"

.PHONY: help install install-tests run test test-all flaky check test-unit test-simulation test-integration test-e2e test-chaos \
	test-docker test-web test-readme image image-jupyterlab jupyterlab bench clean FORCE

help: ## What there is
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .make/ide .make/web ## Everything that `make run` needs
	@:

run: install ## Install what is missing, then start CodeHub until Ctrl-C
	@exec $(BIN)/python -m codehub up

# Root in CI has all that the tests need: there a skip would hide that they did not run (tests/skips.py).
test test-all: export CODEHUB_NO_SKIPS := $(if $(and $(filter true,$(CI)),$(filter 0,$(shell id -u))),1)
test test-all: export CODEHUB_REPEAT_FAILED := test-results/repeat-failed
export CODEHUB_PAUSES := $(PAUSES)

test: install-tests ## Before every push: check, and representatives of every layer (PAUSES=1: with random pauses)
	@scripts/run-in-parallel.sh "$(MAKE) --no-print-directory check test-web" "$(TESTS) tests"

# Everything at once loads two cores eight-fold: what takes 24 s alone was seen to take 300 s. The bound only ends what hangs.
test-all: export PYTEST_TIMEOUT := 1200
test-all: export CODEHUB_TEST_ALL := 1
test-all: install-tests ## Everything: each layer in full, the soak, then the layers with real servers with random pauses
	@failed=0; \
	scripts/run-in-parallel.sh "$(MAKE) --no-print-directory check test-web" "$(TESTS) --ignore=$(SOAK) tests" || failed=1; \
	scripts/run-in-parallel.sh "$(PYTEST) $(SOAK)" || failed=1; \
	CODEHUB_TEST_ALL= CODEHUB_PAUSES=1 scripts/run-in-parallel.sh "$(TESTS) $(call layers,integration chaos docker)" || failed=1; \
	exit $$failed

flaky: install-tests ## Repeat tests under load and report failures with their seeds: make flaky N=20 TEST=tests/...
	@$(BIN)/python -m tests.flaky $(or $(N),20) $(TEST)

check: install ## Format, lint, types, import rules
	$(call say,Checking)
	@$(BIN)/ruff format --check --quiet codehub tests scripts $(wildcard bench)
	@$(BIN)/ruff check --quiet codehub tests scripts $(wildcard bench)
	@$(BIN)/mypy
	@$(BIN)/mypy --config-file tests/mypy.ini tests
	@$(BIN)/lint-imports --no-logo
	@PATH="$(TOOLS_DIR)/bin:$$PATH" npm --prefix web run --silent check

test-unit: install ## Pure rules and single modules, in seconds
	@$(TESTS) $(call layers,unit)

test-simulation: install ## The control plane in simulated time
	@$(TESTS) $(call layers,simulation)

test-integration: install-tests ## Modules with real PostgreSQL, Redis, processes
	@$(TESTS) $(call layers,integration)

test-e2e: install-tests ## The whole system, as a person uses it
	@$(PYTEST) $(call layers,e2e)

test-chaos: install-tests ## kill -9 in the middle of things
	@$(PYTEST) $(call layers,chaos)

test-docker: install-tests ## Workspaces on a real Docker Engine, started for the tests alone
	@$(PYTEST) $(call layers,docker)

test-web: install ## The dashboard's own tests
	@PATH="$(TOOLS_DIR)/bin:$$PATH" npm --prefix web test --silent

test-readme: ## Follow the README literally, in an empty directory with empty caches
	@scripts/test-readme.sh

image: install ## The code-server image for the Docker runtime, where no registry can be reached
	@scripts/make-image.sh

image-jupyterlab: install ## The JupyterLab image, likewise
	@scripts/make-image.sh jupyterlab

jupyterlab: install ## JupyterLab for the process runtime (docs/images.md)
	@scripts/install-jupyterlab.sh

bench: install-tests ## Measure, beside peers
	@$(BIN)/python -m bench

clean: ## Remove what was installed or built in this directory
	rm -rf .make .venv web/dist web/node_modules .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Layers that have tests; pytest calls an empty directory an error.
layers = $(foreach layer,$(1),$(if $(wildcard tests/$(layer)/*),tests/$(layer)))
# A prerequisite that is out of date when the named file is gone, whatever the stamp says.
gone = $(if $(wildcard $(1)),,FORCE)

install-tests: install .make/system-test .make/s3-server .make/jupyterlab .make/image-tar
	@:

.make/system-run: scripts/system-packages.sh
	@scripts/system-packages.sh run
	@mkdir -p .make && touch $@

.make/system-test: scripts/system-packages.sh
	@scripts/system-packages.sh test
	@mkdir -p .make && touch $@

# Without it the S3 tests skip and say so; the next make tries again.
.make/s3-server: scripts/install-s3-server.sh .make/python $(call gone,$(TOOLS_DIR)/bin/versitygw)
	@if scripts/install-s3-server.sh; then touch $@; else echo "No S3 server could be built: S3 tests will skip."; fi

# Without it the JupyterLab tests skip and say so; the next make tries again.
.make/jupyterlab: scripts/install-jupyterlab.sh $(wildcard images/jupyterlab/*) .make/python $(call gone,$(TOOLS_DIR)/bin/jupyterlab)
	@if scripts/install-jupyterlab.sh; then touch $@; else echo "JupyterLab could not be installed: its tests will skip."; fi

# Without it the test of the IDE's image skips and says so; the next make tries again.
.make/image-tar: scripts/make-image.sh images/code-server/packages.txt .make/ide .make/system-test $(call gone,$(TOOLS_DIR)/images/code-server-*.tar)
	@if scripts/make-image.sh tar code-server; then touch $@; else echo "No image can be made here: its test will skip."; fi

.make/python: requirements.lock .make/system-run $(call gone,$(BIN)/python)
	$(call say,Installing Python packages)
	@scripts/python-packages.sh $(VENV)
	@touch $@

.make/package: pyproject.toml scripts/hatch_build.py .make/python
	$(call say,Installing CodeHub)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

.make/ide: codehub/cli/ide.py .make/package $(call gone,$(TOOLS_DIR)/bin/code-server)
	$(call say,Installing the IDE)
	@$(BIN)/python -m codehub ide install
	@touch $@

.make/web: $(WEB_SOURCES) .make/ide $(call gone,web/dist/index.html)
	$(call say,Building the dashboard)
	@# Not `npm ci`: it insists on the optional packages of foreign platforms, which not every registry carries.
	@PATH="$(TOOLS_DIR)/bin:$$PATH" npm --prefix web install --no-save --no-audit --no-fund --loglevel=error
	@PATH="$(TOOLS_DIR)/bin:$$PATH" npm --prefix web run --silent build
	@touch $@

FORCE:

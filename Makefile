# CodeHub. `make help` lists the targets.
#
# Each step of an install writes a stamp file to .make/. A repeat skips the steps that are up to
# date.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

TOOLS_DIR := $(or $(CODEHUB_TOOLS_DIR),$(if $(filter 0,$(shell id -u)),/var/cache/codehub,$(HOME)/.cache/codehub))
export CODEHUB_TOOLS_DIR := $(TOOLS_DIR)
# Without bytecode files, every start would compile all modules.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# For two cores. Most tests wait as long as they compute, so four workers keep both busy.
WORKERS := 4
TESTS := $(PYTEST) -n $(WORKERS) --no-loadscope-reorder
# Random pauses leave the cores idle, so more workers share them.
TESTS_WITH_PAUSES := $(PYTEST) -n 8 --no-loadscope-reorder
# Ten users and every flood. It runs alone.
SOAK := tests/e2e/test_soak.py
WEB_SOURCES := $(shell find web -type f -not -path 'web/node_modules/*' -not -path 'web/dist/*' 2>/dev/null)
log_step = @printf '\033[1m==> %s\033[0m\n' "$(1)"

.PHONY: help install install-tests run test test-all flaky check test-unit test-simulation test-integration test-e2e test-chaos \
	test-docker test-web test-readme image image-jupyterlab jupyterlab bench clean FORCE

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .make/ide .make/web ## Install everything that `make run` needs
	@:

run: install ## Install what is missing, then start CodeHub until Ctrl-C
	@exec $(BIN)/python -m codehub up

# As root in CI, everything that the tests need is there. A skip would be a defect (tests/skips.py).
test test-all: export CODEHUB_NO_SKIPS := $(if $(and $(filter true,$(CI)),$(filter 0,$(shell id -u))),1)
# Each test run of one `make` adds its failures here, and each list of failures shows all so far.
test test-all: export CODEHUB_REPEAT_FAILED := test-results/repeat-failed
export CODEHUB_PAUSES := $(PAUSES)

test: install-tests ## Check, and test representatives of every layer, before every push (PAUSES=1: with random pauses)
	@rm -f $(CODEHUB_REPEAT_FAILED)
	@scripts/run-in-parallel.sh "$(MAKE) --no-print-directory check test-web" "$(TESTS) tests"

# This loads two cores eightfold: a test of 24 s took 300 s. The timeout only ends tests that hang.
test-all: export PYTEST_TIMEOUT := 1200
test-all: export CODEHUB_TEST_ALL := 1
test-all: install-tests ## Test everything: each layer in full, the soak test, then real servers with random pauses
	@rm -f $(CODEHUB_REPEAT_FAILED); failed=0; \
	scripts/run-in-parallel.sh "$(MAKE) --no-print-directory check test-web" "$(TESTS) --ignore=$(SOAK) tests" || failed=1; \
	scripts/run-in-parallel.sh "$(PYTEST) -rP $(SOAK)" || failed=1; \
	CODEHUB_TEST_ALL= CODEHUB_PAUSES=1 scripts/run-in-parallel.sh "$(TESTS_WITH_PAUSES) $(call layers,integration chaos docker)" || failed=1; \
	exit $$failed

flaky: install-tests ## Repeat tests under load and report failures with their seeds: make flaky N=20 TEST=tests/...
	@$(BIN)/python -m tests.flaky $(or $(N),20) $(TEST)

check: install ## Check format, lint, types and import rules
	$(call log_step,Checking)
	@$(BIN)/ruff format --check --quiet codehub tests scripts $(wildcard bench)
	@$(BIN)/ruff check --quiet codehub tests scripts $(wildcard bench)
	@$(BIN)/mypy
	@$(BIN)/mypy --config-file tests/mypy.ini tests
	@$(BIN)/lint-imports --no-logo
	@PATH="$(TOOLS_DIR)/bin:$$PATH" npm --prefix web run --silent check

test-unit: install ## Test pure rules and single modules, in seconds
	@$(TESTS) $(call layers,unit)

test-simulation: install ## Test the control plane in simulated time
	@$(TESTS) $(call layers,simulation)

test-integration: install-tests ## Test modules with real PostgreSQL, Redis and processes
	@$(TESTS) $(call layers,integration)

test-e2e: install-tests ## Test the whole system, as a user uses it
	@$(PYTEST) $(call layers,e2e)

test-chaos: install-tests ## Test kill -9 at any moment
	@$(PYTEST) $(call layers,chaos)

test-docker: install-tests ## Test workspaces on a real Docker Engine that only the tests use
	@$(PYTEST) $(call layers,docker)

test-web: install ## Test the dashboard
	@PATH="$(TOOLS_DIR)/bin:$$PATH" npm --prefix web test --silent

test-readme: ## Run the commands of the README in an empty directory with empty caches
	@scripts/test-readme.sh

image: install ## Make the code-server image for the Docker runtime without a registry
	@scripts/make-image.sh

image-jupyterlab: install ## Make the JupyterLab image without a registry
	@scripts/make-image.sh jupyterlab

jupyterlab: install ## Install JupyterLab for the process runtime (docs/images.md)
	@scripts/install-jupyterlab.sh

bench: install-tests ## Run the benchmarks (bench/README.md)
	@$(BIN)/python -m bench

clean: ## Remove everything installed or built in this directory
	rm -rf .make .venv web/dist web/node_modules .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Layers that have tests: pytest fails on an empty directory.
layers = $(foreach layer,$(1),$(if $(wildcard tests/$(layer)/*),tests/$(layer)))
# Prerequisite that forces a rebuild if the named file is missing, even if the stamp is up to date.
if_missing = $(if $(wildcard $(1)),,FORCE)

install-tests: install .make/system-test .make/s3-server .make/jupyterlab .make/image-tar
	@:

.make/system-run: scripts/install-system-packages.sh
	@scripts/install-system-packages.sh run
	@mkdir -p .make && touch $@

.make/system-test: scripts/install-system-packages.sh
	@scripts/install-system-packages.sh test
	@mkdir -p .make && touch $@

# If the build fails, the S3 tests skip, and the next make tries again.
.make/s3-server: scripts/install-s3-server.sh .make/python $(call if_missing,$(TOOLS_DIR)/bin/versitygw)
	@if scripts/install-s3-server.sh; then touch $@; else echo "The S3 server could not be built. The S3 tests will skip."; fi

# If the installation fails, the JupyterLab tests skip, and the next make tries again.
.make/jupyterlab: scripts/install-jupyterlab.sh $(wildcard images/jupyterlab/*) .make/python $(call if_missing,$(TOOLS_DIR)/bin/jupyterlab)
	@if scripts/install-jupyterlab.sh; then touch $@; else echo "JupyterLab could not be installed. Its tests will skip."; fi

# If the image cannot be made, its test skips, and the next make tries again.
.make/image-tar: scripts/make-image.sh images/code-server/packages.txt .make/ide .make/system-test $(call if_missing,$(TOOLS_DIR)/images/code-server-*.tar)
	@if scripts/make-image.sh tar code-server; then touch $@; else echo "The code-server image could not be made. Its test will skip."; fi

.make/python: requirements.lock .make/system-run $(call if_missing,$(BIN)/python)
	$(call log_step,Installing Python packages)
	@scripts/install-python-packages.sh $(VENV)
	@touch $@

.make/package: pyproject.toml scripts/hatch_build.py .make/python
	$(call log_step,Installing CodeHub)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

.make/ide: codehub/cli/ide.py .make/package $(call if_missing,$(TOOLS_DIR)/bin/code-server)
	$(call log_step,Installing the IDE)
	@$(BIN)/python -m codehub ide install
	@touch $@

.make/web: $(WEB_SOURCES) .make/ide $(call if_missing,web/dist/index.html)
	$(call log_step,Building the dashboard)
	@# Not `npm ci`: it requires the optional packages of other platforms, which some registries lack.
	@PATH="$(TOOLS_DIR)/bin:$$PATH" npm --prefix web install --no-save --no-audit --no-fund --loglevel=error
	@PATH="$(TOOLS_DIR)/bin:$$PATH" npm --prefix web run --silent build
	@touch $@

FORCE:

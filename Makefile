# kvplane's commands; `make` alone lists them. Environments are built on demand and kept:
# .venv (project), .venv-vllm (engines), .build/ (code generation, locking).

# Python 3.11, 3.12 or 3.13 with the venv module; the first that is found.
ifndef PYTHON
PYTHON := $(shell for python in python3.11 python3.12 python3.13 python3; do \
	  $$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	    2>/dev/null && command -v $$python && break; done)
endif
# Where PyTorch's CPU wheels are, for machines whose pip is not set up to find them.
TORCH_INDEX_URL ?=
# What `make demo` runs on: vllm (real engines) or sim (simulated ones).
ENGINE ?= vllm
# File that `make demo` writes its table to, and `make truth` and `make interleavings` their figures.
JSON ?=
# How many turns `make truth` plays, with which dice, and the fault to plant in it, if any.
TURNS ?= 1000
SEED ?= 1
PLANT ?=
# Rounds of `make interleavings`.
ROUNDS ?= 1000
# More arguments for pytest.
PYTEST_ARGS ?=

BIN := .venv/bin
ENGINE_PYTHON := .venv-vllm/bin/python
CODEGEN := PATH="$(CURDIR)/.build/codegen/bin:$$PATH"

.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory
# A caller's own Python settings must not leak into the project's environments.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Settings: ENGINE=vllm|sim JSON=FILE (demo), ROUNDS=1000 JSON=FILE (interleavings),"
	@echo "          TURNS=1000 SEED=1 PLANT=rotate|digest|validation JSON=FILE (truth),"
	@echo "          PYTEST_ARGS=... (test, test-fast),"
	@echo "          PYTHON=/path/to/python3.12, TORCH_INDEX_URL=https://... (PyTorch's CPU wheels)"

# -- What users run -------------------------------------------------------------------------------

.PHONY: demo
demo: $(if $(filter sim,$(ENGINE)),demo-env,demo-env engine-env) ## Hold a chat with and without reuse, and compare (ENGINE=vllm|sim JSON=FILE)
	@$(BIN)/kvplane demo --engine $(ENGINE) \
	  $(if $(filter vllm,$(ENGINE)),--engine-python $(ENGINE_PYTHON)) $(if $(JSON),--json "$(JSON)")

.PHONY: build
build: build-env ## Build the wheel into dist/
	@rm -rf dist
	@.build/wheel/bin/hatchling build -t wheel

# -- What developers run --------------------------------------------------------------------------

.PHONY: test
test: dev-env codegen-env etcd-env engine-env vllm-sources ## Run every check and every test, on real vLLM too
	@failed=; $(MAKE) check || failed=" check"; \
	$(BIN)/pytest $(PYTEST_ARGS) || failed="$$failed pytest"; \
	[ -z "$$failed" ] || { echo "make test: failed:$$failed" >&2; exit 1; }

.PHONY: test-fast
test-fast: dev-env codegen-env etcd-env vllm-sources ## Run the unit and contract tests, without vLLM
	@$(BIN)/pytest tests/unit tests/contract -m "not vllm" $(PYTEST_ARGS)

.PHONY: truth
truth: dev-env engine-env ## Compare TURNS answers with recomputed ones on real vLLM, whatever happens meanwhile
	@$(BIN)/python -m tests.truth --turns "$(TURNS)" --seed "$(SEED)" \
	  $(if $(PLANT),--plant "$(PLANT)") $(if $(JSON),--json "$(JSON)")

.PHONY: interleavings
interleavings: dev-env engine-env ## Read what is given away meanwhile, ROUNDS times by cma and by tcp, and check each answer
	@$(BIN)/python -m tests.interleavings --rounds $(ROUNDS) $(if $(JSON),--json "$(JSON)")

.PHONY: check
check: dev-env codegen-env ## Lint, formats, types, import direction, contracts, drift of generated and lock files
	@failed=; for check in $(CHECKS); do \
	  $(MAKE) $$check || failed="$$failed $$check"; \
	done; [ -z "$$failed" ] || { echo "make check: failed:$$failed" >&2; exit 1; }

CHECKS := check-lint check-format check-mypy check-pyright check-imports check-contracts check-drift check-locks

.PHONY: $(CHECKS)
check-lint:
	$(BIN)/ruff check --output-format=concise
check-format:
	$(BIN)/ruff format --check
check-mypy:
	$(BIN)/mypy
check-pyright:
	$(BIN)/pyright
check-imports:
	$(BIN)/lint-imports
check-contracts:
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
check-drift:
	@echo "tools/generate.py --check"
	@$(CODEGEN) python tools/generate.py --check
check-locks:
	$(BIN)/python tools/lock.py --check

.PHONY: format
format: dev-env ## Format code and contracts, and fix what the linter can
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format
	@$(BIN)/buf format --write

.PHONY: proto
proto: codegen-env ## Generate code from proto/
	@$(CODEGEN) python tools/generate.py

# What contracts must stay compatible with: the main branch, here or at the origin.
AGAINST ?= $(shell git rev-parse --quiet --verify main || git rev-parse --quiet --verify origin/main)
.PHONY: breaking
breaking: dev-env ## Fail if the contracts break clients of the main branch (AGAINST=REVISION for another)
	@[ -n "$(AGAINST)" ] || { echo "kvplane: there is no main branch to compare with: make breaking AGAINST=REVISION" >&2; exit 1; }
	@git rev-parse --quiet --verify '$(AGAINST)^{commit}' >/dev/null || { echo "kvplane: AGAINST=$(AGAINST) is no revision of this repository: name a branch, a tag or a commit" >&2; exit 1; }
	@$(BIN)/buf breaking --against "$$(git rev-parse --git-common-dir)#ref=$$(git rev-parse --verify '$(AGAINST)^{commit}')"

.PHONY: lock
lock: lock-env ## Resolve the lock files in requirements/ (LOCK_ARGS=--upgrade for the newest versions)
	@PATH="$(CURDIR)/.build/lock/bin:$$PATH" python tools/lock.py $(LOCK_ARGS)

.PHONY: clean
clean: ## Remove environments and everything else that can be made again
	@rm -rf .venv .venv-vllm .build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

# -- Environments ---------------------------------------------------------------------------------

.PHONY: build-env demo-env dev-env engine-env codegen-env lock-env
build-env demo-env dev-env engine-env codegen-env lock-env: %-env: python-found
	@"$(PYTHON)" tools/environment.py $* $(if $(TORCH_INDEX_URL),--torch-index-url "$(TORCH_INDEX_URL)")

engine-env: ## Build the environment of the real engines, .venv-vllm

.PHONY: etcd-env
etcd-env: python-found ## Get an etcd server for tests, .build/etcd/etcd
	@"$(PYTHON)" tools/etcd_binary.py

.PHONY: vllm-sources
vllm-sources: dev-env ## Get the connector's sources of every supported vLLM, .build/vllm-sources
	@$(BIN)/python tools/vllm_sources.py

.PHONY: python-found
python-found:
	@[ -n "$(PYTHON)" ] || { echo "kvplane: needs Python 3.11, 3.12 or 3.13 with its venv module (Debian, Ubuntu: apt-get install python3-venv); name one: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null && "$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "kvplane: $(PYTHON) is not Python 3.11, 3.12 or 3.13 with its venv module (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
ifeq ($(filter $(ENGINE),vllm sim),)
	@echo "kvplane: ENGINE is vllm or sim, not '$(ENGINE)'" >&2; exit 1
endif

# The chores. `make` alone lists them. Everything happens in .venv, which is made and kept up to date as needed:
# only git, make and a Python from 3.11 on have to be there.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve test chaos fuzz check format screenshots bench bench-check audit clients conformance mcp-conformance docs lock image image-test clean

PORT   ?=
CONFIG ?=
ARGS   ?=
ENGINE ?= docker
# Processes of `make test`: most of a test is waiting, and two cores are kept busy by four.
JOBS   ?= 4
# They start Callgate hundreds of times: its bytecode is kept even where the environment says not to.
PYTEST := PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest

# Paths are relative throughout, so that a checkout may stand in a folder whose name has spaces. For the same reason
# tools are run as `python -m`: a script in .venv/bin names its interpreter by an absolute path.
PY  := .venv/bin/python
PIP := $(PY) -m pip -qq --disable-pip-version-check --no-input

# Tried in this order, unless PYTHON says which. Tried by running: a pyenv shim is on the path without working.
PYTHONS := $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3)
USABLE  := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

# A .venv whose Python has gone, or that was made for another folder, is not whole and will be made anew.
WHOLE := $(PY) -c '$(USABLE)' 2>/dev/null && grep -qF "$$(pwd -P)/.venv/bin/python" .venv/bin/pip 2>/dev/null
$(shell [ -L .venv ] || { $(WHOLE); } || rm -f .venv/.made)

# Where .venv is a link, what it leads to is another checkout's: making it anew would empty that one, and installing would
# point it here.
OWN := if [ -L .venv ]; then echo '.venv is a link, and what it leads to is left alone: remove the link, or call .venv/bin/python -m ...' >&2; exit 1; fi

help: ## list the chores
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

serve: .venv/.runtime ## serve on 127.0.0.1:8000, or as the config says (PORT=8001 CONFIG=my.yaml)
	@$(PY) -m callgate serve $(if $(PORT),--port "$(PORT)") $(if $(CONFIG),--config "$(CONFIG)") $(ARGS)

test: .venv/.dev ## run all the tests, JOBS=4 at a time, or some in one process (ARGS="tests/calls -k truncated")
	@$(PYTEST) $(or $(ARGS),-n $(JOBS))

# Tests elsewhere that report a time, and hold it to a bar only here, and property tests, which try all their examples here.
TIMED = $(filter-out tests/chaos/% tests/server/%,$(sort $(shell grep -rlE "held_to|chaos.scale|hypothesis|cut_everywhere" tests --include="test_*.py")))

chaos: .venv/.dev ## overload, drain, kill -9, soak, cancellation, bad requests, at full length, and all that is held to a time; figures in build/chaos.jsonl
	@mkdir -p build && rm -f build/chaos.jsonl
	@CALLGATE_CHAOS=long CALLGATE_CHAOS_FIGURES=build/chaos.jsonl $(PYTEST) $(or $(ARGS),tests/chaos tests/server $(TIMED))
	@$(if $(ARGS),:,CALLGATE_TRIPLES=only $(PYTEST))
	@cat build/chaos.jsonl

fuzz: .venv/.dev ## search for inputs that readers fail on, SECONDS=60 for each of tests/fuzz (ARGS=stream for one of them; edge tries 100,000)
	@$(if $(filter edge,$(ARGS)),:,$(PY) -c 'import atheris') 2>/dev/null || $(PY) -m uv pip install --quiet --python $(PY) --group fuzz
	@$(PY) -m tests.fuzz $(ARGS) --seconds $(or $(SECONDS),60)

check: .venv/.dev ## lint, formatting, types, and who may import whom
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-logo

format: .venv/.dev ## put the code in its form
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

screenshots: .venv/.dev ## take the pictures of the page for docs/ again (needs chromium-headless-shell)
	@$(PY) -m tests.page.screenshots

bench: .venv/.dev ## measure what all kinds of request cost, beside the reference commit (ARGS=bench/arguments.py for one of the others)
	@$(if $(ARGS),$(PY) $(ARGS),$(PY) bench/run.py; $(PY) bench/compare.py --all)

bench-check: .venv/.dev ## whether a request has become dearer, in counts and beside the reference commit, in under two minutes
	@$(PY) bench/run.py
	@$(PY) bench/compare.py

audit: .venv/.dev ## look for secrets in the repository, and for known vulnerabilities of what is locked
	@$(PY) .ci/audit.py $(ARGS)

clients: .venv/.dev ## play all real clients, agents, snippets of pages and a local model against a served Callgate, and write docs/clients.md
	@CALLGATE_CLIENTS_TABLE=write $(PYTEST) tests/clients tests/mcp_server/test_sdk_client.py tests/docs/test_pages.py tests/local_model

conformance: .venv/.dev ## hold /v1/responses to the suite of Open Responses, in the folder CALLGATE_OPENRESPONSES
	@PYTHONPATH=app $(PY) -m tests.conformance

mcp-conformance: .venv/.dev ## hold our MCP client and /mcp to the official suite, at both revisions of the protocol
	@PYTHONPATH=app $(PY) -m tests.mcp_conformance $(ARGS)

docs: .venv/.made ## build the documentation as a site, into build/docs
	@NO_MKDOCS_2_WARNING=1 "$$($(PY) -m tests.harness.environment site)/bin/python" -m mkdocs build --strict --quiet
	@echo "build/docs/index.html; with the search: $(PY) -m http.server --directory build/docs"

image: ## build the container images callgate, and callgate:tools with node and uv (ENGINE=docker)
	@$(ENGINE) build --tag callgate .
	@$(ENGINE) build --tag callgate:tools --target tools .

image-test: .venv/.dev image ## build the images and try them (ENGINE=podman)
	@CALLGATE_IMAGE=callgate ENGINE=$(ENGINE) $(PYTEST) tests/deploy/test_image.py

clean: ## remove .venv and everything else that was made here
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	@find app tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The locks: exact versions and hashes for every platform, and no address of any index in them. Seven days of delay,
# because releases that were tampered with have been found and withdrawn within hours.
LOCKING = UV_CUSTOM_COMPILE_COMMAND="make lock" $(PY) -m uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --exclude-newer "7 days" $(if $(UPGRADE),--upgrade)

lock: .venv/.dev ## re-make the locks after a change in pyproject.toml (UPGRADE=1 takes newer releases)
	@$(LOCKING) --all-extras --output-file requirements.lock pyproject.toml
	@$(LOCKING) --group build --constraints requirements.lock --output-file requirements-build.lock
	@$(LOCKING) --group image --output-file requirements-image.lock
	@$(LOCKING) --all-extras --group dev --group build --constraints requirements.lock \
		--constraints requirements-build.lock --output-file requirements-dev.lock pyproject.toml
	@$(if $(UPGRADE),$(PY) -m tests.harness.environment lock)
	@git --no-pager diff --stat -- '*.lock' tests/clients

# The stamps. A lock that is newer than its stamp is installed again; pip leaves what is already right alone.

.venv/.made:
	@$(OWN)
	@if { $(WHOLE); }; then touch $@; exit 0; fi; \
	for candidate in $(PYTHONS); do \
		if "$$candidate" -c '$(USABLE)' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo 'Callgate needs Python 3.11 or newer, with its venv module (Debian: apt install python3-venv).' >&2; \
		echo 'None was found. If it stands elsewhere, say where: make PYTHON=/path/to/python3' >&2; \
		exit 1; \
	fi; \
	echo "Making .venv with $$("$$found" --version)"; \
	"$$found" -m venv --clear .venv && touch $@

.venv/.runtime: .venv/.made requirements.lock requirements-build.lock pyproject.toml
	@$(OWN)
	@echo 'Installing what requirements.lock names (under a minute, the first time)'
	@$(PIP) install --no-compile --require-hashes -r requirements.lock
	@$(PIP) install --no-compile --require-hashes -r requirements-build.lock
	@$(PIP) install --no-compile --no-deps --no-build-isolation --editable .
	@$(COMPILE)
	@touch $@

.venv/.dev: .venv/.runtime requirements-dev.lock
	@$(OWN)
	@echo 'Installing what tests and checks need'
	@$(PIP) install --no-compile --require-hashes -r requirements-dev.lock
	@$(COMPILE)
	@touch $@

# Bytecode ahead of the first start, on all cores: importing litellm without it takes four seconds instead of two.
COMPILE = $(PY) -m compileall -q -j 0 .venv/lib app

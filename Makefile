# Plain make, python3 -m venv and pip: nothing else is needed on a fresh machine.
# Every target makes the virtual environment that it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input \
	--progress-bar off -c constraints.txt
# Two processes: what a laptop has, and the tests of one rig stay together (tests/conftest.py).
PARALLEL ?= -n 2 --dist loadgroup --no-loadscope-reorder
# What the tests start of clusters: Slurm on this machine, and Ceph with its S3 gateway.
RIG_PACKAGES := slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins \
	radosgw ceph-mon ceph-osd ceph-common
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test rigs check bench peers soak clean distclean

help:  ## Show this list
	@echo "make TARGET [PYTHON=python3.12] [ARGS='options of the tool that the target runs']"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/.core  ## Tokenize a small text, verify the store and look inside it
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh $(ARGS)

test: $(VENV)/.test  ## Run the tests (no network, no GPU): make test ARGS='-k store -x'
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

rigs:  ## Install Slurm and an S3 server, which tests start themselves (Debian, Ubuntu; needs root)
	@if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then \
		echo "make rigs: no apt-get here, so nothing was installed. Tests that need Slurm or an S3" \
			"server are skipped, unless you install them: $(RIG_PACKAGES)"; exit 0; fi; \
	missing=$$(for package in $(RIG_PACKAGES); do \
		dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || echo $$package; \
		done); \
	if [ -z "$$missing" ]; then echo "make rigs: all packages are here"; exit 0; fi; \
	if [ "$$(id -u)" = 0 ]; then sudo=; elif command -v sudo >/dev/null; then sudo=sudo; else \
		echo "make rigs: run it as root, or install these: $$missing" >&2; exit 2; fi; \
	echo "make rigs: installing" $$missing; \
	$$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends $$missing

check: $(VENV)/.check  ## Check format, lint and types, then run the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

bench: $(VENV)/.test  ## Measure speed and memory: prints one JSON line per result
	$(BIN)/python benchmarks/corpus.py
	$(BIN)/python benchmarks/help_time.py
	$(BIN)/python benchmarks/tokenize_speed.py $(ARGS)
	$(BIN)/python benchmarks/verify_speed.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/consolidate_speed.py
	$(BIN)/python benchmarks/loader_speed.py
	$(BIN)/python benchmarks/loader_open.py
	$(BIN)/python benchmarks/plan_scale.py
	$(BIN)/python benchmarks/ray_overhead.py

peers: $(VENV)/.test  ## Measure other projects on the same text, in an environment of their own
	$(BIN)/python benchmarks/corpus.py
	$(BIN)/python benchmarks/peers.py $(ARGS)

soak: $(VENV)/.test  ## Run for many minutes with kills and faults
	$(BIN)/python -m pytest -m soak $(ARGS)

clean:  ## Delete caches and results; keep the virtual environment
	rm -rf build dist demo site .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## Delete the virtual environments and the benchmark text as well
	rm -rf $(VENV) benchmarks/.venv-peers benchmarks/data

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing tokenmill into $(VENV)"
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.test $(VENV)/.check: $(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing tokenmill and what '$*' needs into $(VENV)"
	@$(PIP_INSTALL) -e '.[$*]'
	@touch $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "tokenmill needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name another one: make PYTHON=python3.12" >&2; exit 2; }
	@echo "Making the virtual environment $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }

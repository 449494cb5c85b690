# Every target sets up what it needs: the environment is made once, in .venv, and a second run starts at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export PATH := $(CURDIR)/$(BIN):$(PATH)

# test processes side by side
JOBS   ?= 2
# a second Triton beside the pinned one, for `make test-triton`
TRITON ?= 3.9.0
BESIDE := .triton/$(TRITON)
# kernels of the published models' sizes
SHIPPED := K16 V64 bf16|bf16 64 table causal|memory_[a-z]+ bf16 64

.PHONY: study test test-interpreter test-triton test-long test-team test-browser kernel-table gpu-check lint env clean help

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

study: $(STAMP)  ## run the study `quick` and print its report (about a quarter of an hour on two cores)
	$(BIN)/reread study run $(or $(STUDY),quick)

test: $(STAMP)   ## every test that takes seconds; Triton kernels run in Triton's interpreter, in a process of their own
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not long and not services and not browser and not team" -n $(JOBS) --dist loadfile $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "services and not long and not browser" $(ARGS)
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/interpreter -n $(JOBS)

test-triton: $(BESIDE)/.installed  ## the Triton kernels with another Triton: make test-triton TRITON=3.6.0
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 PYTHONPATH=$(BESIDE) $(BIN)/python -m pytest tests/interpreter -n $(JOBS)
	PYTHONPATH=$(BESIDE) $(BIN)/python -m kernels.compile --only '$(SHIPPED)' --target 80 --target 90 --target 100

# Triton 3.6's interpreter cannot loop under numpy 2.4
$(BESIDE)/.installed: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(BESIDE) triton==$(TRITON) $(if $(filter 3.6.%,$(TRITON)),numpy==2.2.6)
	@touch $@

kernel-table: $(STAMP)  ## compile the Triton kernels for GPUs that are not here; keep registers, stack and shared memory
	$(BIN)/python -m kernels.compile --json tests/golden/compiled.json

test-long: $(STAMP)  ## the forms that take minutes: killed processes, several workers, whole studies
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "long and not browser" $(ARGS)

test-browser: $(STAMP)  ## what a person does in the web pages, in Chromium; screenshots in .pytest_browser (or REREAD_SCREENSHOTS)
	$(BIN)/python -c 'import playwright' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[browser]"
	command -v chromium >/dev/null || test "$$(id -u)" != 0 || { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; }
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser $(ARGS)

test-team: $(VENV)/.team  ## a team's installation as processes: PostgreSQL, S3 storage, proxy, Ray, workers (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/team -rs -s $(ARGS)

# without PostgreSQL and without root the tests that need it are skipped, and say so
$(VENV)/.team: $(STAMP)
	@command -v initdb > /dev/null || ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || test "$$(id -u)" != 0 \
	  || (apt-get update && apt-get install --yes --no-install-recommends postgresql)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[team]"
	@touch $@

lint: $(STAMP)   ## ruff and the import rule
	$(BIN)/ruff check .
	$(BIN)/lint-imports

env: $(STAMP)    ## the environment only

# torch first and alone: deepspeed is a source package and looks for it
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 13) else "reread needs Python 3.11 or 3.12; this is %d.%d. Use: make PYTHON=python3.11 ..." % sys.version_info[:2])'
	@echo "Setting up $(VENV) (some minutes, once)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip==26.3" "setuptools==84.2.1" "wheel==0.48.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,peers,harness]"
	$(BIN)/python -m flows.services.prefect_database
	@touch $(STAMP)

clean:           ## remove caches; artifacts (.reread) and the environment stay
	rm -rf .triton .pytest_cache .ruff_cache build *.egg-info
	find . -name __pycache__ -not -path "./$(VENV)/*" -prune -exec rm -rf {} +

gpu-check: $(STAMP)  ## on a machine with a GPU: are the Triton kernels right, do runs agree, how fast are they
	$(BIN)/python -m kernels.gpu_check --out tests/golden/gpu

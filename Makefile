# These commands do everything on a fresh clone that has Python 3.11 or 3.12 (with venv) and make:
#   make demo        install, then teach a real small model thirty facts on this machine, and show its answers
#   make rehearse    install, then train a tiny twin of the survival recipe on this machine
#   make test        install, then run the tests
# `make PYTHON=/path/to/python3.12` names a Python; otherwise the first of these that is 3.11 or 3.12 is taken.
FITS   := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(or $(shell for each in python3 python3.12 python3.11; do $$each -c '$(FITS)' 2>/dev/null && echo $$each && break; done),python3)
VENV   := .venv
BIN    := $(VENV)/bin

# The stamp changes when what to install changes, or the folder's name; so a second run installs nothing.
STAMP := $(VENV)/.installed-$(shell (cat pyproject.toml constraints.txt; pwd) | cksum | cut -d' ' -f1)

.PHONY: install demo rehearse test test-long test-processors lint golden schemas language-server docs bench clean

# Without bytecode, each of hundreds of short processes would compile the runner again.
unexport PYTHONDONTWRITEBYTECODE

install: $(STAMP)

$(STAMP):
	@$(PYTHON) install.py
	@touch $@

demo: install
	$(BIN)/python -m runner run recipes/museum.yaml --brief --yes

rehearse: install
	$(BIN)/python -m runner rehearse recipes/survival.yaml

# Three processes, because each waits for others now and then, and each with whole files: what a file's tests share is made once. They are begun in the order of tests/conftest.py,
# heavy ones first. A cluster is one for all tests.
WORKERS := $(if $(RECIPE_TEST_KUBECONFIG),0,3)

# `make test PART=serve` runs the tests of that part alone.
PART ?=

test: install lint
	$(BIN)/python -m pytest -m "not long" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(if $(PART),tests/parts/$(PART))

# Judges in environments of their own: the SDK of Kubeflow Pipelines wants an older Kubernetes client than ours, and MLflow's server
# other older packages; its client is in the extra `mlflow`. EvalHub's server is a program, and lm-eval needs `tenacity` to ask a server.
KFP     := build/kfp
MLFLOW  := build/mlflow
EVALHUB := build/evalhub

$(KFP): JUDGE := kfp==2.17.0
$(MLFLOW): JUDGE := mlflow==3.17.2
$(EVALHUB): JUDGE := eval-hub-server==1.0.2 tenacity==9.2.1
$(KFP) $(MLFLOW) $(EVALHUB):
	$(PYTHON) -m venv $@ && $@/bin/python -m pip install --quiet $(JUDGE) || { rm -rf $@; exit 1; }

# The extra `gguf` compiles llama.cpp, for about 20 minutes on two cores.
test-long: install $(KFP) $(MLFLOW) $(EVALHUB)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[gguf]"
	$(BIN)/python -m pip install --quiet --no-deps llmcompressor==0.14.0.1 compressed-tensors==0.19.0
	RECIPE_TEST_KFP=$(abspath $(KFP))/bin/python RECIPE_TEST_MLFLOW=$(abspath $(MLFLOW))/bin/python RECIPE_TEST_EVALHUB=$(abspath $(EVALHUB)) \
		$(BIN)/python -m pytest -m long -n $(WORKERS) --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest tests/check/test_no_trace.py tests/recipe/test_reading.py tests/data/test_blocks.py tests/data/test_chat_data.py --hypothesis-profile=default

# Each makes one machine compute as another processor does: the first two choose PyTorch's code, the last oneDNN's.
PROCESSORS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=SSE41
WHICH ?= floating_point

# Every test that trains or computes with tensors, the long ones too, which takes many hours: `make test-processors WHICH="floating_point
# and not long"` takes about an hour. No failure under one processor hides those under another.
test-processors: install
	failed=; for processor in $(PROCESSORS); do echo "$$processor"; \
		env $$processor $(BIN)/python -m pytest -m "$(WHICH)" -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		|| failed="$$failed $$processor"; done; test -z "$$failed" || { echo "failed under$$failed"; false; }

lint: install
	$(BIN)/ruff check install.py runner tests benchmarks schemas container docs
	$(BIN)/ruff format --check install.py runner tests benchmarks schemas container docs
	$(BIN)/mypy

# Rewrites what is generated; look at `git diff` before committing.
schemas: install
	$(BIN)/python schemas/build.py
	$(BIN)/python schemas/axolotl_settings.py

# The documentation as a site, in build/docs/index.html; it fetches nothing, neither now nor when it is read.
docs: install
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs build/docs

# What editors judge recipes with, for its tests; it takes node, and is no part of the product.
language-server: install
	npm install --silent --prefix $(VENV)/language-server yaml-language-server@2.0.0

# Without the messages of what trains or asks a hub; `make golden-all` rewrites those too.
golden: schemas
	RECIPE_GOLDEN=write $(BIN)/python -m pytest -m "golden and not heavy and not long" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

golden-all: schemas
	RECIPE_GOLDEN=write $(BIN)/python -m pytest -m golden -n $(WORKERS) --dist loadfile --no-loadscope-reorder

bench: install
	$(BIN)/python benchmarks/check_speed.py
	$(BIN)/python benchmarks/blocks_speed.py
	$(BIN)/python benchmarks/rows_speed.py

clean:
	rm -rf build runs $(VENV)

# Every target sets up its own .venv first: editable install of this checkout from constraints.txt.
# A second run finds it ready. Options: PYTHON=python3.12  JOBS=4  ARGS="what follows the command"
# HASHES=1 lets `make setup` take only the files whose hashes are in requirements.lock, which are the public index's.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
ARGS ?=
HASHES ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Of pip's output, a line for each download (name, version, size) and the last step.
PROGRESS := \
  /^ *Downloading .*\.whl / && !/metadata/ { split($$2, a, "-"); print "      " a[1], a[2], $$3, $$4; fflush() } \
  /^Installing collected/ { print "      unpacking"; fflush() }
# One worker takes a whole test file, so that its kernels are compiled once.
PYTEST := $(BIN)/pytest -n $(JOBS) --dist loadfile

.PHONY: help setup test test-slow test-nightly test-integrations pretrain pretrain-distributed bench bench-gpu gpu-rehearsal gpu-wheels lint tree types docs format hooks dist lock versions clean distclean

help: ## this list
	@printf 'make TARGET [ARGS="..."]\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-21s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## .venv with this checkout and everything it needs (all targets below do this first)
	@echo "$(VENV) is ready"

$(READY): pyproject.toml constraints.txt requirements.lock
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "make: '$(PYTHON)' not found; name a Python 3.10 or newer: make PYTHON=/path/to/python3 ..." >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: Python 3.10 or newer is needed, $$($(PYTHON) -V 2>&1) was found; name another: make PYTHON=/path/to/python3 ..." >&2; exit 2; }
	@echo "[1/3] $(VENV): a virtual environment with $$($(PYTHON) -V)"
	@"$(PYTHON)" -m venv "$(VENV)" || { \
	  echo "make: this Python cannot make virtual environments (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 2; }
	@echo "[2/3] packages pinned in constraints.txt; some minutes, torch is the big one"
ifeq ($(HASHES),)
	@$(PIP) install -q -c constraints.txt pip setuptools
	@PYTHONWARNINGS=ignore $(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]' | awk '$(PROGRESS)'
else
	@PYTHONWARNINGS=ignore $(PIP) install --require-hashes --only-binary :all: -r requirements.lock | awk '$(PROGRESS)'
	@$(PIP) install -q --no-deps --no-build-isolation -e .
endif
	@# What this checkout was installed as before it was called mcf-torch.
	@$(PIP) uninstall -q -y mcf 2>/dev/null
	@echo "[3/3] ready: $$($(BIN)/python -c 'import torch; print("torch", torch.__version__)')"
	@touch $@

test: $(READY) ## the tests; ARGS are pytest's: make test ARGS="-k grow -x"
	$(PYTEST) $(ARGS)

test-slow: $(READY) ## only the tests marked slow (an hour on two cores)
	$(PYTEST) -m 'slow and not nightly' $(ARGS)

test-nightly: $(READY) ## every test, with the large hypothesis profile (hours)
	$(PYTEST) -m '' --hypothesis-profile=nightly $(ARGS)

# As build/docs: an environment of its own, which sees the packages of the other one. Python 3.11 or newer.
build/integrations/.ready: tests/integrations/requirements.txt $(READY)
	@"$(BIN)/python" -m venv build/integrations
	@site() { "$$1" -c 'import site; print(site.getsitepackages()[0])'; }; \
	  printf 'import site; site.addsitedir(r"%s")\n' "$$(site "$(BIN)/python")" > "$$(site build/integrations/bin/python)/development.pth"
	@build/integrations/bin/python -m pip --disable-pip-version-check install -q --require-virtualenv --no-deps -r tests/integrations/requirements.txt
	@touch $@

test-integrations: build/integrations/.ready ## our optimizers in transformers, accelerate, Lightning, timm, TRL, TensorBoard, pytorch-optimizer
	OMP_NUM_THREADS=1 build/integrations/bin/python -m pytest tests/integrations tests/optim/test_amp.py::test_lightning_clips $(ARGS)

pretrain: $(READY) ## train a small GPT under each precision strategy; options: make pretrain ARGS=--help
	$(BIN)/python examples/pretrain.py --resume $(ARGS)

pretrain-distributed: $(READY) ## train a small Llama by two processes that share every parameter (FSDP2)
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node 2 examples/pretrain.py --parallel fsdp --reduce exact \
	  --model llama-1m --context 64 --batch-size 8 --micro-batch 4 --steps 600 --name distributed --resume $(ARGS)

bench: $(READY) ## time the optimizer steps beside torch's and optimi's
	$(BIN)/python benchmarks/optimizer_step.py $(ARGS)

bench-gpu: $(READY) ## everything that wants a GPU, in nine minutes, and docs/gpu.md; ARGS=--small works on any machine
	$(BIN)/python benchmarks/gpu_day.py $(ARGS)
	$(BIN)/python benchmarks/gpu_page.py

# Python 3.12 where there is one, as on the machine that is imitated.
build/gpu-rehearsal/.ready: benchmarks/gpu_machine.txt
	@for p in python3.12 "$(PYTHON)"; do "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && break; p=; done; \
	  [ -n "$$p" ] || { echo "make: no Python 3.12 found; name one: make gpu-rehearsal PYTHON=/path/to/python3.12" >&2; exit 2; }; \
	  [ -x build/gpu-rehearsal/bin/python ] || "$$p" -m venv build/gpu-rehearsal
	build/gpu-rehearsal/bin/python -m pip --disable-pip-version-check install -r benchmarks/gpu_machine.txt | awk '$(PROGRESS)'
	@touch $@

# The day's own commands, from a copy of what git tracks: nothing is installed, and git knows nothing of it.
gpu-rehearsal: build/gpu-rehearsal/.ready gpu-wheels ## the GPU day in small without a GPU, in the environment of a machine that has one (Linux)
	rm -rf build/gpu-rehearsal/copy build/gpu-rehearsal/out
	mkdir -p build/gpu-rehearsal/copy build/gpu-rehearsal/out
	git ls-files -z | tar --create --null --files-from=- .whl | tar --extract --directory build/gpu-rehearsal/copy
	cd build/gpu-rehearsal/copy && failed=0 && for part in 1 2; do \
	  env -u PYTHONPATH ../bin/python benchmarks/gpu_day.py --small --part $$part --out ../out/day.csv $(ARGS) || failed=1; \
	done && exit $$failed

.whl/.ready: benchmarks/gpu_peers.txt
	"$(PYTHON)" -m pip --disable-pip-version-check download -q --no-deps --only-binary :all: --python-version 3.12 \
	  --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 -r benchmarks/gpu_peers.txt -d .whl
	@touch $@

gpu-wheels: .whl/.ready ## .whl/: other projects' optimizers and the commit, to copy with the tree to a machine with a GPU and no network
	@git describe --always --dirty > .whl/commit

lint: $(READY) ## ruff and mypy, as pre-commit runs them, and the English of docstrings and commit subjects
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python tests/test_english.py
	@$(MAKE) --no-print-directory types

# mypy and mkdocs see the packages where the import names say they are: through a tree of links, mcf/optim -> optim.
tree:
	@rm -rf build/types && mkdir -p build/types/mcf
	@ln -s "$(CURDIR)"/mcf/* "$(CURDIR)/optim" "$(CURDIR)/kernels" build/types/mcf/

types: $(READY) tree
	cd build/types && "$(abspath $(BIN))/mypy" --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p mcf

# In an environment of its own, which sees the packages of the other one.
build/docs/.ready: docs/site/requirements.txt $(READY)
	@"$(BIN)/python" -m venv build/docs
	@build/docs/bin/python -m pip --disable-pip-version-check install -q --require-virtualenv --no-deps -r docs/site/requirements.txt
	@"$(BIN)/python" -c 'import site; print(site.getsitepackages()[0])' > "$$(build/docs/bin/python -c 'import site; print(site.getsitepackages()[0])')/development.pth"
	@touch $@

docs: build/docs/.ready tree ## build/site: the documentation as a site, every link checked; make docs ARGS=serve shows it while you write
	PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH="$(CURDIR)" NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs $(or $(ARGS),build --strict)

format: $(READY) ## let ruff fix and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

hooks: $(READY) ## install the pre-commit hooks
	$(BIN)/pre-commit install

dist: $(READY) ## dist/: sdist and wheel of the commit that is checked out; ARGS=--check compares, installs and tries them
	$(BIN)/python .ci/dist $(ARGS)

# uv makes one list for every Python and platform; it asks the public index alone, whatever pip is set up with.
lock: $(READY) ## requirements.lock: constraints.txt with hashes
	@"$(BIN)/python" -m venv build/lock && build/lock/bin/python -m pip install -q uv
	printf '%s\n' pip setuptools | build/lock/bin/uv pip compile -q --no-config --universal --python-version 3.10 \
	  --generate-hashes --no-annotate --custom-compile-command 'make lock' -c constraints.txt --extra dev - pyproject.toml \
	  -o requirements.lock $(ARGS) >/dev/null

versions: ## try the oldest and newest packages on every Python there is; make versions ARGS=--help
	"$(PYTHON)" .ci/versions $(ARGS)

clean: ## remove what builds and tools left (keeps .venv, with the links that it imports from, and runs/)
	[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name '__editable__*' -exec rm -rf {} +
	rm -rf dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv
	rm -rf $(VENV) build

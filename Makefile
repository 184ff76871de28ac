# Two commands do everything on a fresh machine: `make demo` and `make test`.
# `make attack` takes about an hour: 50,000 bad inputs and 1,000 kills (docs/reliability.md).

VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test attack lint format clean

demo: $(STAMP)
	$(BIN)/python -m codinet.demo --out runs/demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

attack: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.attack --inputs 50000 --kills 1000 --jobs 2 --table attack.md

lint: $(STAMP)
	$(BIN)/ruff check src tests tools
	$(BIN)/ruff format --check src tests tools
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix src tests tools
	$(BIN)/ruff format src tests tools

# On Linux, PyPI's torchvision is built for CUDA. A torch without CUDA needs the one of PyTorch's own index.
TORCHVISION_CPU = --quiet --force-reinstall --no-deps --retries 0 --timeout 30 \
	--index-url https://download.pytorch.org/whl/cpu \
	torchvision==$(shell sed -n 's/^torchvision==//p' constraints.txt)+cpu

# torch comes first and pinned, so that no other package's wish for "any torch" pulls a different build.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,plot,explore,onnx,vision]'
	$(BIN)/python -c 'import torchvision' 2>/dev/null || $(BIN)/pip install $(TORCHVISION_CPU) || \
		echo "torchvision does not fit this torch; docs/your-data.md explains how to repair it. All else works."
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache

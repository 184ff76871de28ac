# Two commands do everything on a fresh machine: `make demo` and `make test`.
# `make docs` builds the documentation's site into site/ (open site/index.html).
# `make matrix` plays every command on eight timm and torchvision networks (docs/your-networks.md).
# `make attack` takes about an hour: 50,000 bad inputs and 1,000 kills (docs/reliability.md).

VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed

# Packages come without bytecode, and the tests start a hundred processes. With this variable each would compile PyTorch.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test docs matrix attack lint format clean

demo: $(STAMP)
	$(BIN)/python -m codinet.demo --out runs/demo

# The tests include what `lint` checks (tests/test_lint.py), so it runs beside them.
# MALLOC_…: tensors come and go, and memory that goes back to the system each time is cleared before it comes again.
test: $(STAMP)
	OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=134217728 \
		$(BIN)/pytest -n 2 --dist worksteal

docs: $(DOCS_STAMP)  # not with --quiet, which would also keep --strict from seeing warnings
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean
	@echo "site/index.html is built"

matrix: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.matrix

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
# --no-compile: Python compiles what is imported, which is a small part.
$(STAMP): pyproject.toml constraints.txt
	@echo "Installing codinet and what it needs into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch
	@$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev,plot,explore,onnx,vision]'
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || $(BIN)/pip install $(TORCHVISION_CPU) 2>/dev/null || \
		echo "This torchvision is built for CUDA and does not fit a torch without it. codinet works around this;" \
		"docs/your-networks.md explains how to repair it."
	@touch $(STAMP)

# MkDocs and its plugins, which nothing else needs.
$(DOCS_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[docs]'
	touch $(DOCS_STAMP)

clean:
	rm -rf $(VENV) runs site .pytest_cache .mypy_cache .ruff_cache

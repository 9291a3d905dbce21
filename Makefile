# Every target first installs the project with the tested versions into .venv.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin

.PHONY: demo test test-slow test-all test-stress test-gpu bench-gpu check format docs bench clean

demo: $(VENV)/installed
	$(BIN)/tightfit demo

test: $(VENV)/installed
	$(BIN)/pytest -n 2 -q

# These tests need minutes, or ../shared with models and data.
test-slow: $(VENV)/installed
	$(BIN)/pytest -n 2 -q -m slow

test-all: test test-slow

# Fault injection, about fifteen minutes. Writes records/reliability.json and docs/reliability.md.
test-stress: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m stress
	$(BIN)/python scripts/docs.py

# GPU code on fake GPUs (fake_gpu/README.md), with the CUDA build of torch in a virtualenv of its own: 6 GB on the disk.
# It is not part of `make test`.
GPU_VENV := .venv-gpu

test-gpu: $(GPU_VENV)/installed
	$(MAKE) -C fake_gpu PYTHON=$(abspath $(GPU_VENV)/bin/python)
	PYTHONPATH=. $(GPU_VENV)/bin/pytest -n 2 -q fake_gpu/tests tests/gpu

# Predicted GPU memory beside that of torch's own allocator, on fake GPUs. Writes records/gpu.json.
bench-gpu: $(GPU_VENV)/installed
	$(MAKE) -C fake_gpu PYTHON=$(abspath $(GPU_VENV)/bin/python)
	PYTHONPATH=src $(GPU_VENV)/bin/python bench/gpu_memory.py

# pip's settings may point to a CPU build of torch: without them it takes the CUDA build.
$(GPU_VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(GPU_VENV)
	env -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null $(GPU_VENV)/bin/pip install -q -c constraints.txt torch
	$(GPU_VENV)/bin/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/installed
	$(BIN)/python scripts/docs.py

# Benchmarks write what they measured to records/. They need ../shared with models and data, and hours.
BENCHMARKS := step cpu_speed roofline memory architectures published quality comparison recipes frozen padding plans planning hard_limit tight_budget exported_scripts plan_choice same_result tasks demo

bench: $(addprefix bench-,$(BENCHMARKS))

bench-%: $(VENV)/installed
	$(BIN)/python bench/$*.py

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[demo,dev]'
	touch $@

clean:
	rm -rf $(VENV) $(GPU_VENV) fake_gpu/build build dist .mypy_cache .ruff_cache .pytest_cache

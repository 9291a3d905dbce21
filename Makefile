# Every target first installs the project with the tested versions into .venv.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin

.PHONY: demo test test-slow test-all test-stress check format docs bench clean

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
BENCHMARKS := step memory published quality comparison recipes frozen padding plans planning hard_limit plan_choice same_result demo

bench: $(addprefix bench-,$(BENCHMARKS))

bench-%: $(VENV)/installed
	$(BIN)/python bench/$*.py

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[demo,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

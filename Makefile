# Every target sets itself up: a virtualenv in .venv with the tested versions, then the job.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin

.PHONY: demo test test-slow stress check format docs bench clean

demo: $(VENV)/installed
	$(BIN)/tightfit demo

test: $(VENV)/installed
	$(BIN)/pytest -n 2 -q

test-slow: $(VENV)/installed
	$(BIN)/pytest -q -m slow

# Runs killed, starved and fed rubbish: some fifteen minutes. Writes records/reliability.json and docs/reliability.md.
stress: $(VENV)/installed
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

# Benchmarks write what they measure to records/. They read ../shared and are no tests.
bench: bench-step bench-memory bench-published bench-quality bench-ladder bench-frozen bench-padding bench-answers bench-planning bench-promise bench-regret bench-same bench-demo

bench-%: $(VENV)/installed
	$(BIN)/python bench/$*.py

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[demo,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

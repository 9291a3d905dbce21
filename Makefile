# Every target sets itself up: a virtualenv in .venv with the tested versions, then the job.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin

.PHONY: demo test test-slow torture check format docs bench bench-answers bench-frozen bench-ladder bench-memory bench-padding bench-promise bench-published bench-quality bench-regret bench-step clean

demo: $(VENV)/installed
	$(BIN)/tightfit demo

test: $(VENV)/installed
	$(BIN)/pytest -n 2 -q

test-slow: $(VENV)/installed
	$(BIN)/pytest -q -m slow

# Runs killed, starved and fed rubbish: some fifteen minutes. Writes records/reliability.json and docs/reliability.md.
torture: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m torture
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
bench: bench-step bench-memory bench-published bench-quality bench-ladder bench-frozen bench-padding bench-answers bench-promise bench-regret

bench-step: $(VENV)/installed
	$(BIN)/python bench/step.py

bench-frozen: $(VENV)/installed
	$(BIN)/python bench/frozen.py

bench-ladder: $(VENV)/installed
	$(BIN)/python bench/ladder.py

bench-memory: $(VENV)/installed
	$(BIN)/python bench/memory.py

bench-padding: $(VENV)/installed
	$(BIN)/python bench/padding.py

bench-promise: $(VENV)/installed
	$(BIN)/python bench/promise.py

bench-regret: $(VENV)/installed
	$(BIN)/python bench/regret.py

bench-answers: $(VENV)/installed
	$(BIN)/python bench/answers.py

bench-published: $(VENV)/installed
	$(BIN)/python bench/published.py

bench-quality: $(VENV)/installed
	$(BIN)/python bench/quality.py

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[demo,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

# Two commands on a fresh machine: `make title` shows what tinykit does, `make test` checks everything.
PYTHON ?= python3
BIN := .venv/bin
# the notebooks use the model that the tests have fetched and imported
TEST_HOME := $(CURDIR)/.pytest_cache/d/tinykit-home

.PHONY: title test lint types unit notebooks table clean

title: .venv/installed
	$(BIN)/tinykit title --stats --file examples/messages.txt

test: lint types unit notebooks

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

unit: .venv/installed
	$(BIN)/pytest

notebooks: .venv/installed
	TINYKIT_HOME="$(TEST_HOME)" TINYKIT_PROGRESS=off $(BIN)/pytest --nbval notebooks -o filterwarnings= -o testpaths=

table: .venv/installed
	$(BIN)/python benchmarks/titles_table.py

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache

# Two commands on a fresh machine: `make title` shows what tinykit does, `make test` checks everything.
PYTHON ?= python3
BIN := .venv/bin
# the notebooks use the model that the tests have fetched and imported
TEST_HOME := $(CURDIR)/.pytest_cache/d/tinykit-home

# a release that runs everywhere; set it to name another build, for instance of the processor alone
TORCH ?= torch==2.13.0

.PHONY: title test test-extra test-extra-light test-browser lint types unit notebooks table clean

title: .venv/installed
	$(BIN)/tinykit title --stats --file examples/messages.txt

test: lint types unit notebooks

# parity with torch, transformers and peft: some gigabytes of packages, in an environment of its own
test-extra: .venv-extra/installed
	.venv-extra/bin/pytest tests/extra tests/tune

# the part of it that wants neither the embedded model nor training
test-extra-light: .venv-extra/installed
	.venv-extra/bin/pytest tests/extra -m "not real"

# the widgets in JupyterLab, driven by Chromium; screenshots go to artifacts/
test-browser: .venv-browser/installed
	.venv-browser/bin/pytest tests/browser

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

unit: .venv/installed
	$(BIN)/pytest

notebooks: .venv/installed
	TINYKIT_HOME="$(TEST_HOME)" TINYKIT_PROGRESS=off $(BIN)/pytest --nbval notebooks -o filterwarnings= -o testpaths= -o timeout=1200

table: .venv/installed
	$(BIN)/python benchmarks/titles_table.py

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

.venv-extra/installed: pyproject.toml
	$(PYTHON) -m venv .venv-extra
	.venv-extra/bin/python -m pip install --quiet --upgrade pip
	.venv-extra/bin/python -m pip install --quiet "$(TORCH)"
	.venv-extra/bin/python -m pip install --quiet -e ".[dev,tune,transformers]" "peft>=0.15" \
		"onnxruntime-genai>=0.18" onnx-ir
	touch $@

.venv-browser/installed: pyproject.toml
	$(PYTHON) -m venv .venv-browser
	.venv-browser/bin/python -m pip install --quiet --upgrade pip
	.venv-browser/bin/python -m pip install --quiet -e ".[notebook]" "notebook>=7" playwright "pytest>=8.3" "pytest-timeout>=2.3"
	touch $@

clean:
	rm -rf .venv .venv-extra .venv-browser artifacts .pytest_cache .mypy_cache .ruff_cache

# Everything runs in .venv, which the first command makes from python3, venv and pip alone.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint format clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/sghmc demo --out results/demo

test: setup
	$(BIN)/pytest --numprocesses 2 --dist loadfile

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv results .pytest_cache .ruff_cache

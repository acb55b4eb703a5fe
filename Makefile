# Everything runs in .venv, which the first command makes from python3, venv and pip alone.
PYTHON ?= python3
# The versions that were tried together; CONSTRAINTS= takes the newest there are.
CONSTRAINTS ?= --constraint constraints.txt
BIN := .venv/bin

.PHONY: setup demo test test-all test-torch test-pymc test-browser lint format docs bench bench-quick clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable '.[dev,docs,browser]'
	touch $@

demo: setup
	$(BIN)/sghmc demo --out results/demo

test: setup
	$(BIN)/pytest --numprocesses 2 --dist loadfile

# Also what takes minutes: what CI runs.
test-all: test
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m slow

# sghmc.torch, its page and its example. PyTorch is no part of setup, since the registry's wheel for
# Linux brings CUDA: whatever torch is in .venv already, a CPU wheel say, is left as it is.
test-torch: setup
	$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable '.[torch]'
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m 'not browser' tests/torch tests/documents/test_torch_laws.py
	$(BIN)/pytest --numprocesses 2 -m 'not browser' -k torch tests/documents tests/test_architecture.py

# sghmc.interop.pymc, in an environment of its own: PyMC brings pytensor, numba and a compiler's work.
test-pymc:
	$(PYTHON) -m venv .venv-pymc
	.venv-pymc/bin/pip install --quiet --disable-pip-version-check --editable '.[arviz,pymc]' pytest beartype
	.venv-pymc/bin/pytest -q -m 'not browser' tests/interop/test_pymc.py

# sghmc.torch in Lightning, accelerate and Hugging Face's Trainer: what CI does every night.
test-trainers: setup
	$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable '.[torch]' lightning transformers accelerate
	$(BIN)/pytest -m 'slow or not slow' tests/torch/test_trainer_runs.py

# Reports and the site in the system's Chromium, headless. Without the gallery, which takes minutes to
# make: after make docs, SITE=results/site looks at that.
SITE ?= results/site-without-gallery
test-browser: setup
	test $(SITE) = results/site || WITHOUT=gallery NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir $(SITE)
	SITE=$(SITE) $(BIN)/pytest -m browser tests/browser

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Pages that need nothing from the network; open results/site/index.html.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo The site is results/site/index.html.

# Beside bare loops and other libraries, which get environments of their own in .peers.
bench: setup
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/million.py --nuts-warmup 10 --nuts-draws 20 --json results/speed/million.json

bench-quick: setup
	$(BIN)/python benchmarks/speed.py --quick --out results/speed-quick

clean:
	rm -rf .venv .venv-pymc .peers results .pytest_cache .ruff_cache

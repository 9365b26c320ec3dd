# Everything from a fresh clone: Python >= 3.11, make and the package registry are all it takes.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help

help:
	@echo "make demo      nacre run on the digits that come with scikit-learn, about a minute"
	@echo "make test      the tests, under 5 minutes on 2 cores"
	@echo "make test-all  the slow ones too"
	@echo "make check     format, lint, types and the house's rule"
	@echo "make bench     speed and growth, as ratios within one run; appends to docs/results.md."
	@echo "               DATA=folder of uoft-cs/cifar100/*.parquet: loading it too"

# one marker a set of extras: what is installed is what was tested
.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("nacre needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	touch $@

.venv/test: .venv/demo
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench,export,hf,ray,dev]'
	touch $@

demo: .venv/demo
	rm -rf runs/demo
	$(BIN)/nacre run --out runs/demo

test: .venv/test
	$(BIN)/python -m pytest -q -n 2

test-all: .venv/test
	$(BIN)/python -m pytest -q -n 2 -m 'slow or not slow'

check: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/test
	$(BIN)/python benchmarks/speed.py --append docs/results.md
	$(BIN)/python benchmarks/details.py --append docs/results.md
	$(BIN)/python benchmarks/experiments.py --append docs/results.md $(if $(DATA),--data $(DATA))

.PHONY: help demo test test-all check bench

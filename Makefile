# Every target sets up .venv by itself, from nothing but python3. A second run installs nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint types layers docs unit slow site-test tutorials hostile studies-quick bench format clean

# The UCI files for the study on real data, where they lie beside the checkout; else they are downloaded.
export DISTGP_DATA ?= $(abspath $(wildcard ../shared/data))

help: ## Show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("distgp needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

setup: $(STAMP) ## Create .venv with everything pinned in constraints.txt

demo: $(STAMP) ## Fit 120,000 rows, compare all aggregators; writes build/demo.png
	@mkdir -p build
	$(BIN)/distgp demo --output build/demo.png --force

test: lint types layers docs unit ## Check everything: style, types, layers, docs, tests

test-all: test slow studies-quick ## Check everything, and what takes longer: soaks, the studies in small

lint: $(STAMP) ## ruff: style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## pyright
	$(BIN)/pyright

layers: $(STAMP) ## import-linter: imports point one way
	$(BIN)/lint-imports

docs: $(STAMP) ## zensical, strict; writes build/site
	rm -rf build/site
	$(BIN)/zensical build --clean --strict --config-file mkdocs.yml

# Two processes with a thread each: with more threads than cores they would wait for one another.
unit: $(STAMP) ## pytest, without the slow tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

slow: $(STAMP) ## pytest, the slow tests alone
	$(BIN)/python -m pytest -m slow

site-test: $(STAMP) ## Open the built site in a real browser, which is installed where there is none
	command -v chromium chromium-browser google-chrome >/dev/null || apt-get install -y chromium
	$(BIN)/python -m pytest tests/site

tutorials: $(STAMP) ## Run the tutorials, and write what they print and draw into their pages and notebooks
	$(BIN)/python docs/pages.py docs/tutorials/*.md

hostile: $(STAMP) ## Try to break it: all names, values, tables, files, signals, lost workers
	rm -rf build/hostile
	DISTGP_HOSTILE=full OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/hostile
	$(BIN)/python tests/hostile/report.py

studies-quick: $(STAMP) ## Every experiment of the paper in small; writes build/studies-quick
	rm -rf build/studies-quick
	$(BIN)/python -m experiments all --quick --output build/studies-quick

bench: $(STAMP) ## Run the benchmarks: beside peers, near the limit, whole jobs; then the others in small
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@for script in peers limits "growth --largest=100000" "jobs --limit=60" precision streaming "aggregation --quick" "training --quick" \
	  "estimator --quick" "engines --quick" "sparsegrid --quick"; do \
	  set -- $$script; echo "== $$script"; $(BIN)/python benchmarks/$$1.py $$2 || exit 1; done

format: $(STAMP) ## Rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove what was built, the environment included
	rm -rf $(VENV) build .pytest_cache .ruff_cache .hypothesis .import_linter_cache .cache

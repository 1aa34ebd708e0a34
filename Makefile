# Every target sets up .venv by itself, from nothing but python3. A second run installs nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint types layers docs unit slow site-test tutorials hostile studies-quick bench map dist format clean

# The UCI files for the study on real data, where they lie beside the checkout; else they are downloaded.
export DISTGP_DATA ?= $(abspath $(wildcard ../shared/data))

##@ Begin

help: ## List all commands.
	@awk -F ':.*## ' '/^##@ /{printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("distgp needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

setup: $(STAMP) ## Create the environment .venv, with the versions that constraints.txt pins.

demo: $(STAMP) ## Fit 120,000 rows, compare all aggregators, and draw build/demo.png.
	@mkdir -p build
	$(BIN)/distgp demo --output build/demo.png --force

clean: ## Remove what was built, and the environment.
	rm -rf $(VENV) build .pytest_cache .ruff_cache .hypothesis .import_linter_cache .cache

##@ Check a change

# Types are checked beside the tests: alone, with one thread, they would leave the other cores idle.
test: lint layers docs ## Check what every change must pass: style, types, layers, docs and tests.
	$(MAKE) --jobs=2 types unit

test-all: test slow studies-quick ## Check that and what takes longer: slow tests, and the paper's experiments in small.

lint: $(STAMP) ## Check style and formatting with ruff.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Check types with pyright.
	$(BIN)/pyright

layers: $(STAMP) ## Check that imports point one way, with import-linter.
	$(BIN)/lint-imports

docs: $(STAMP) ## Build the site strictly with Zensical, into build/site.
	rm -rf build/site
	$(BIN)/zensical build --clean --strict --config-file mkdocs.yml

# Two processes with a thread each: with more threads than cores they would wait for one another.
unit: $(STAMP) ## Run the tests that are not slow.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

slow: $(STAMP) ## Run the slow tests alone.
	$(BIN)/python -m pytest -m slow

format: $(STAMP) ## Rewrite the sources in the project's style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

##@ Documentation

site-test: $(STAMP) ## Open the built site in a real browser, which is installed where there is none.
	command -v chromium chromium-browser google-chrome >/dev/null || apt-get install -y chromium
	$(BIN)/python -m pytest tests/site

tutorials: $(STAMP) ## Run the tutorials, and write what they print and draw into pages and notebooks.
	$(BIN)/python docs/pages.py docs/tutorials/*.md

map: $(STAMP) ## Draw the map of the house from the imports, into docs/contributing.md.
	$(BIN)/python docs/house.py

##@ Before a release

# Where a test hangs and its process is ended, the other tests of its file go on: "loadfile" would run it again.
hostile: $(STAMP) ## Try to break it with bad values, tables, files and signals, and with lost workers.
	rm -rf build/hostile
	DISTGP_HOSTILE=full OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/hostile || failed=1; \
	  $(BIN)/python tests/hostile/report.py; exit $${failed:-0}

studies-quick: $(STAMP) ## Run every experiment of the paper in small, into build/studies-quick.
	rm -rf build/studies-quick
	$(BIN)/python -m experiments all --quick --output build/studies-quick

bench: $(STAMP) ## Run the benchmarks beside peers, near the limit and for whole jobs; the others in small.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@for script in peers limits "growth --largest=100000" "jobs --limit=60" precision streaming "aggregation --quick" "training --quick" \
	  "estimator --quick" "engines --quick" "sparsegrid --quick"; do \
	  set -- $$script; echo "== $$script"; $(BIN)/python benchmarks/$$1.py $$2 || exit 1; done

dist: $(STAMP) ## Build the sdist and the wheel, into dist.
	rm -rf dist
	$(BIN)/python -m build

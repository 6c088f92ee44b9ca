# On a fresh machine with Python >= 3.11 and a package index, `make demo` or `make test` is all it takes.
# Any of the variables can be given on the command line: make test PYTHON=python3.12 WORKERS=4 PYTEST="-k cache"

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 3
DEMO ?=
JUPYTER ?=
PYTEST ?=
EX ?=
HINT ?=

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# The models are tiny: one thread a process is the fastest, and the processes share the cores: three on two, since some
# tests wait for programs. Many tests start Python: what it compiles is kept.
FOR_TESTS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: help demo notebooks slides grade test lint format site clean
.DELETE_ON_ERROR:

help: ## say what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

demo: $(VENV)/package.stamp ## solve a few problems with Lookahead Reasoning, and compare (DEMO="--problems 4" passes options on)
	@$(BIN)/lr demo $(DEMO)

grade: $(VENV)/package.stamp ## grade an exercise (EX=residual; HINT=1 adds a hint)
	@test -n "$(EX)" || { echo "Which exercise? For example: make grade EX=residual (notebooks/exercises/README.md lists them)"; exit 2; }
	@$(BIN)/python notebooks/exercises/grade.py $(EX) $(if $(HINT),--hint) || true

notebooks: $(VENV)/learn.stamp ## open the notebooks in JupyterLab (JUPYTER="--no-browser --port 8890" passes options on)
	@$(BIN)/jupyter lab --notebook-dir=notebooks $(JUPYTER)

slides: $(VENV)/learn.stamp ## write the slides of the two lectures into slides/
	@$(BIN)/python scripts/slides.py slides

test: $(VENV)/dev.stamp ## run every test, about 5 minutes (PYTEST="-m core": forty seconds)
	@echo "Every test: about 5 minutes on two cores. The core alone, forty seconds: make test PYTEST=\"-m core\""
	@$(FOR_TESTS) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST)

lint: $(VENV)/dev.stamp ## check style, format and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(VENV)/dev.stamp ## rewrite the sources in the agreed format
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format

site: $(VENV)/site.stamp ## build the documentation site into site/, warnings being errors
	@echo "Building the site takes about two minutes ..."
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Done. Open site/index.html in a browser; no server and no network is needed."

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist site slides .cache *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find lr tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says that the environment holds what pyproject.toml and constraints.txt ask for; a change of either installs again.
$(VENV)/made.stamp:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) here. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is `$(PYTHON) --version 2>&1`; this project needs Python 3.11 or newer. Name one: make PYTHON=python3.12"; exit 1; }
	@echo "Making a virtual environment in $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu install the package python3-venv."; exit 1; }
	@touch $@

$(VENV)/package.stamp: $(VENV)/made.stamp pyproject.toml constraints.txt
	@echo "Installing the package and PyTorch (a few hundred megabytes, once) ..."
	@$(INSTALL) --quiet "pip>=23"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/package.stamp
	@echo "Installing what the tests and checks need ..."
	@$(INSTALL) --quiet -e ".[dev]"
	@touch $@

$(VENV)/learn.stamp: $(VENV)/package.stamp
	@echo "Installing JupyterLab, ipywidgets and matplotlib ..."
	@$(INSTALL) --quiet -e ".[learn]"
	@touch $@

$(VENV)/site.stamp: $(VENV)/package.stamp
	@echo "Installing what the documentation site needs ..."
	@$(INSTALL) --quiet -e ".[site]"
	@touch $@

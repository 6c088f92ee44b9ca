# With Python >= 3.11 and a package index, `make demo` or `make test` works on a fresh machine.
# Set any variable on the command line: make test PYTHON=python3.12 WORKERS=4 PYTEST="-k cache"

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
DEMO ?=
JUPYTER ?=
PYTEST ?=
EX ?=
HINT ?=
CPU_INDEX ?=

BIN := $(VENV)/bin
# CPU_INDEX=URL: PyTorch's builds without CUDA, from the address that PyTorch's page "Get
# started" names for CPUs. Only Linux has the choice.
CPU_OPTION := $(if $(CPU_INDEX),--extra-index-url $(CPU_INDEX))
INSTALL := $(BIN)/python scripts/install.py -c constraints.txt $(CPU_OPTION)
# The models are tiny, so one thread per process is fastest. Many tests start Python, so its
# compiled files are kept.
FOR_TESTS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

# The tensors are tiny; and tqdm misses a widget that nobody needs.
IN_NOTEBOOKS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONWARNINGS="ignore:IProgress not found"

.PHONY: help demo notebooks slides grade test lint format site clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

demo: $(VENV)/package.stamp ## plain decoding and lookahead race live; then all modes compared (DEMO="--depth 4")
	@$(BIN)/lr demo $(DEMO)

grade: $(VENV)/package.stamp ## grade an exercise (EX=residual; HINT=1 adds a hint)
	@test -n "$(EX)" || { echo "Which exercise? For example: make grade EX=residual" \
		"(notebooks/exercises/README.md lists them)"; exit 2; }
	@$(BIN)/python notebooks/exercises/grade.py $(EX) $(if $(HINT),--hint) || test $$? -eq 1

notebooks: $(VENV)/learn.stamp ## open the notebooks in JupyterLab (JUPYTER="--no-browser")
	@$(IN_NOTEBOOKS) $(BIN)/jupyter lab --notebook-dir=notebooks $(JUPYTER)

slides: $(VENV)/learn.stamp ## write the slides of both lectures, and a sheet of questions, to slides/
	@$(BIN)/python scripts/slides.py slides

test: $(VENV)/dev.stamp ## run every test but the slow ones of .ci/run (PYTEST="-m core": the core)
	@$(FOR_TESTS) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST)

lint: $(VENV)/dev.stamp ## check style, format, types and who imports whom
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(VENV)/dev.stamp ## rewrite the sources in the agreed format
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format

site: $(VENV)/site.stamp ## build the documentation in site/; warnings are errors
	@echo "Building the site takes about a minute ..."
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build > $(VENV)/site.log 2>&1 || { grep -v ^INFO $(VENV)/site.log; false; }
	@echo "Done. Open site/index.html in a browser; it needs no server and no network."

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist site slides .cache *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find lr tests scripts training -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp marks a finished installation. It is older than pyproject.toml or constraints.txt once
# one of them changes; then make installs again.
$(VENV)/made.stamp:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found." \
		"Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is `$(PYTHON) --version 2>&1`; this project needs Python 3.11 or newer." \
		"Name one: make PYTHON=python3.12"; exit 1; }
	@echo "Making a virtual environment in $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make virtual environments." \
		"On Debian and Ubuntu, install the package python3-venv."; exit 1; }
	@touch $@

$(VENV)/package.stamp: $(VENV)/made.stamp pyproject.toml constraints.txt
	@echo "Installing the package and PyTorch, once. It downloads about 300 MB; on Linux 2.5 GB," \
		"because PyTorch brings CUDA (make CPU_INDEX=URL: without) ..."
	@$(INSTALL) "pip>=23"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/package.stamp
	@echo "Installing the tools for tests and checks ..."
	@$(INSTALL) -e ".[dev]"
	@touch $@

$(VENV)/learn.stamp: $(VENV)/package.stamp
	@echo "Installing JupyterLab and matplotlib ..."
	@$(INSTALL) -e ".[learn]"
	@touch $@

$(VENV)/site.stamp: $(VENV)/package.stamp
	@echo "Installing the tools for the documentation site ..."
	@$(INSTALL) -e ".[site]"
	@touch $@

# The one command runner: `make run`, `make test`; CI calls these too.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# the first GPU that was measured, with the lookup that campaigns run; else one that ships
MEASURED := $(firstword $(notdir $(patsubst %/manifest.json,%,$(wildcard $(or $(STEPTIME_MEASUREMENTS),measurements)/*/manifest.json))))
EXAMPLE := gpu=$(or $(MEASURED),V100) model=dlrm_default $(if $(MEASURED),overrides=model.embedding=joint_sparse)
GRID ?= $(EXAMPLE)
export PYTHONWARNINGS ?= ignore

# says which rules refit what is made of newer GPUs' measurements: none where their optional package is missing
NEWER := from pipeline.datasets.aiconfigurator import data_dir; print("half_pack collective_curves attention_constants" if data_dir() else "")

.PHONY: help setup run local test lint paper figures report accuracy measured readme packs ui clean unlock

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 12

setup: $(VENV)/.ready ## virtual environment with everything that was tested together

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make run PYTHON=python3.11")'
	@echo "steptime: setting up $(VENV) (a few minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,language]'
	@touch $@

run: setup unlock ## predict DLRM on a measured GPU (else a V100), then measure and predict a small DLRM on this machine
	@$(BIN)/snakemake --config $(EXAMPLE)
	@$(BIN)/snakemake --config gpu=local model=dlrm_small

test: setup ## the whole test suite
	@$(BIN)/python -m pytest -q

lint: setup ## style and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/snakefmt --check -l 120 Snakefile workflow

packs: setup unlock ## refit what ships, from the public data
	@newer=$$($(BIN)/python -c '$(NEWER)') && $(BIN)/snakemake --forcerun pack $$newer -- packs

figures: setup unlock ## figures of a grid: make figures GRID="experiment=paper_dlrm"
	@$(BIN)/snakemake --config $(GRID) -- figures

accuracy: setup unlock ## accuracy tables of a grid
	@$(BIN)/snakemake --config $(GRID) -- accuracy

report: setup unlock ## one page with rule graph, figures and tables of a grid, under results/reports/
	@$(BIN)/snakemake --config $(GRID) -- report

paper: setup unlock ## the grids of the papers, from what this machine has evidence for; says what is missing
	@$(BIN)/python -m pipeline.report.paper_grids

measured: setup unlock ## steps of every GPU under measurements/ against their predictions, into docs/accuracy.md
	@$(BIN)/python -m pipeline.report.measured_campaigns

readme: setup unlock ## tables and pictures of README.md and docs/accuracy.md, from packs and public data
	@$(BIN)/python -m pipeline.report.readme_tables

ui: setup ## MLflow on the project's database
	@$(BIN)/steptime ui

unlock: setup
	@$(BIN)/python -m pipeline.report.unlock

clean: ## remove generated results (the virtual environment stays)
	rm -rf results .snakemake

# All commands of the project, for example `make run` and `make test`. CI uses the same targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The first GPU that a campaign measured, with its host and the embedding lookup that campaigns run. Without a campaign: V100.
MEASURED := $(firstword $(notdir $(patsubst %/manifest.json,%,$(wildcard $(or $(STEPTIME_MEASUREMENTS),measurements)/*/manifest.json))))
EXAMPLE := gpu=$(or $(MEASURED),V100) model=dlrm_default $(if $(MEASURED),host=$(MEASURED) overrides=model.embedding=joint_sparse)
GRID ?= $(EXAMPLE)
export PYTHONWARNINGS ?= ignore

# Prints the rules that refit models of newer GPUs. Without the optional package of their measurements, prints nothing.
NEWER := from evaluation.published.aiconfigurator import data_dir; print("half_pack collective_curves attention_constants" if data_dir() else "")

.PHONY: help setup run local test nightly soak lint moved paper figures report accuracy measured readme pictures packs ui clean unlock

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 12

setup: $(VENV)/.ready ## create the virtual environment with the tested versions of all packages

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make run PYTHON=python3.11")'
	@echo "steptime: setting up $(VENV) (a few minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: setup ## predict the example of README.md from what ships, then probe this machine's CPU, once: a minute
	@STEPTIME_DATASETS=none $(BIN)/steptime predict gpu=V100 model=dlrm_default batch_size=2048
	@$(MAKE) --no-print-directory this_machine.yaml

this_machine.yaml: # kept once it is there: remove it to probe this machine again
	@echo "steptime: probing the CPU of this machine"
	@$(BIN)/steptime host --out this_machine.yaml

local: setup unlock ## the pipeline: predict on a measured GPU (or a V100), then measure, fit and predict a small DLRM here; minutes
	@$(BIN)/snakemake --config $(EXAMPLE)
	@$(BIN)/snakemake --config gpu=local model=dlrm_small

# one worker per core, at most 16: each takes 2 GB of memory, and the longest module ends the run; a module stays on one
# worker, because its tests share what its fixtures made
test: setup ## the whole test suite, on all cores
	@$(BIN)/python -m pytest -q -n logical --maxprocesses 16 --dist loadscope

nightly: setup ## the tests that take long, then the damage and kills of `make soak`
	@$(BIN)/python -m pytest -q -n logical --maxprocesses 16 --dist loadscope -m nightly
	@$(MAKE) soak

soak: setup ## damage 10,000 inputs and kill 100 runs, as a nightly job (45 minutes together)
	@$(BIN)/python -m soak
	@$(BIN)/python -m soak kills

lint: setup ## check style, types and the workflow
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/snakefmt --check -l 120 Snakefile workflow evaluation/rules \
		&& $(BIN)/snakemake --lint

moved: setup ## print which predictions differ from those of the last commit by more than 0.5 %
	@STEPTIME_DATASETS=none $(BIN)/python -m evaluation.golden

packs: setup unlock ## refit the shipped models from the public data
	@newer=$$($(BIN)/python -c '$(NEWER)') && $(BIN)/snakemake --forcerun pack $$newer -- packs
	@$(BIN)/python -m evaluation.checks.session_fit

figures: setup unlock ## draw the figures of a grid: make figures GRID="experiment=paper_dlrm"
	@$(BIN)/snakemake --config $(GRID) -- figures

accuracy: setup unlock ## write the accuracy tables of a grid
	@$(BIN)/snakemake --config $(GRID) -- accuracy

report: setup unlock ## write one page with figures and tables of a grid, under results/reports/
	@$(BIN)/snakemake --config $(GRID) -- report

paper: setup unlock ## draw the figures of the two papers beside ours (docs/papers.md), then compute their grids
	@$(BIN)/python -m evaluation.pages.paper_grids

measured: setup unlock ## compare steps of every GPU under measurements/ with predictions; writes docs/accuracy.md
	@$(BIN)/python -m evaluation.pages.measured_campaigns

readme: setup unlock ## write tables and pictures of README.md and docs/accuracy.md, from packs and public data
	@$(BIN)/python -m evaluation.pages.readme_tables

pictures: setup ## make the pictures of README.md and docs/ and the notebook anew, from what ships (the timeline needs chromium)
	@$(BIN)/python -m evaluation.pages.doc_pictures

ui: setup ## start MLflow on the project's database
	@$(BIN)/steptime ui

unlock: setup
	@$(BIN)/python -m evaluation.pages.snakemake_runs

clean: ## remove generated results; keeps the virtual environment
	rm -rf results .snakemake

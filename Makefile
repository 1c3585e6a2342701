# Two commands: `make run` and `make test`. Both set up everything they need in .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help run test lint types notebooks docs release-check table1 recipe opponents times bench bench-check compiled headline clean

help:            ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 15

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

run: $(READY)    ## A small version of the paper's Table 1, with a table and a figure, in under two minutes
	$(BIN)/python benchmarks/table1.py --small --out results/run

test: $(READY) lint types  ## All tests, with linter and type checker
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal  # one BLAS thread each: two workers, two cores

lint: $(READY)   ## Ruff, rules and format, and which module may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# From its own folder: the contract is about these files, not about an installed copy.
	PYTHONPATH=. $(BIN)/lint-imports --no-cache | tail -n 8

types: $(READY)  ## Mypy
	$(BIN)/mypy

notebooks: $(READY) ## Builds and runs the notebooks; they go to results/notebooks
	$(BIN)/python scripts/build_notebooks.py --out results/notebooks

docs: $(READY)   ## The documentation as a site, in results/site
	@# The variable stops a notice of the theme about its future.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict && \
	  echo "wrote results/site/index.html; its search works when it is served: python -m http.server -d results/site"

release-check: $(READY) ## Builds the wheel and tries it in an empty environment outside of the repository
	$(BIN)/python scripts/release_check.py

table1: $(READY) ## The paper's Table 1 with 30 seeds (about an hour and a half)
	$(BIN)/python benchmarks/table1.py --seeds 30 --out results/table1 \
	  --algorithms kql-rounds kql-rbf kql-features kql-features32 kql-linear kql-greedy dqn random

recipe: $(READY) ## Learning in rounds: 100 seeds, fewer steps, what each part buys (three quarters of an hour; goes on where it was stopped)
	$(BIN)/python benchmarks/recipe.py

opponents: $(READY) ## The default agent against DQN and planning, and with noise (an hour; goes on where it was stopped)
	$(BIN)/python benchmarks/opponents.py

times: $(READY)  ## Seconds of training a seed, everything in one go (ten minutes; leave the machine alone)
	$(BIN)/python -m pip install --quiet --editable '.[sb3]'
	$(BIN)/python benchmarks/sb3_dqn.py --seeds 1 --episodes 5 --out benchmarks/results/times_sb3.json
	rm -rf results/times
	$(BIN)/python benchmarks/table1.py --seeds 1 --episodes 1 --curve-points 0 --out results/times \
	  --algorithms kql-rounds kql-rbf kql-linear kql-greedy kql-features kql-features32 random dqn
	cp results/times/table1.json benchmarks/results/times.json

bench: $(READY)  ## Benchmarks; figures go to benchmarks/results
	$(BIN)/python benchmarks/step_time.py
	$(BIN)/python benchmarks/numerics.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/kovi.py

compiled:        ## Counts kernels, copies and bytes in programs compiled for an A100 and a TPU, without either (some 400 MB)
	$(PYTHON) -m venv $(VENV)-compiled
	$(VENV)-compiled/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-compiled/bin/python -m pip install --quiet --editable . "jax[tpu]==0.10.2" jax-cuda12-plugin==0.10.2 \
	  jax-cuda12-pjrt==0.10.2 nvidia-cuda-runtime-cu12 nvidia-cuda-cupti-cu12 nvidia-cuda-nvcc-cu12
	$(VENV)-compiled/bin/python benchmarks/compiled.py

bench-check: $(READY) ## Quick ratios against their committed values; fails where one fell by more than a third
	$(BIN)/python benchmarks/check.py

headline: $(READY) ## 100 seeds of learning in rounds against one DQN of Stable-Baselines3 (a quarter of an hour; leave the machine alone)
	$(BIN)/python -m pip install --quiet --editable '.[sb3]'
	$(BIN)/python benchmarks/headline.py

clean:           ## Remove the virtual environment, caches and results
	rm -rf $(VENV) $(VENV)-compiled build dist results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

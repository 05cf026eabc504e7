# Two commands, each from a fresh clone: `make retrain` (the main job) and `make test`.
PYTHON ?= python3.11
BIN := .venv/bin
INSTALLED := .venv/.installed

# Whoever sets it has every process compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: retrain test test-cluster cluster-packages soak lint compiled clean
.DEFAULT_GOAL := retrain

retrain: $(INSTALLED)
	$(BIN)/headway retrain deployments/stdlib-lm.yaml

# Five processes on two cores: a good part of what is tested waits for servers and deadlines.
test: $(INSTALLED)
	@$(MAKE) --no-print-directory -j 2 lint compiled
	$(BIN)/python -m pytest -n 5 --dist loadfile --ignore=tests/cluster

# Hosts of namespaces with sshd, a Slurm of three nodes, an emulated Kubernetes, a PostgreSQL: as root, with the packages
# of tests/cluster/install.sh.
test-cluster: $(INSTALLED)
	$(BIN)/python -m pytest -n 3 --dist loadfile tests/cluster

# Best effort: a test that misses one is skipped, and says so.
cluster-packages:
	-tests/cluster/install.sh

# 200 random kills, some minutes: every run must end with the undisturbed run's bits. Then 50 moves of the champion by
# each of four writers on two hosts, in a folder and on S3, with MLflow's alias following them and without. Then every way
# of ending a part of a run, ten times: nobody is left; the evidence is soak-faults.json. Then 50 kills, after each of
# which the next attempt's ranks must meet, and 100 hangs and slow ranks, each of which must be named. Then the tests that
# prove again what a shorter one of `make test` proves.
soak: $(INSTALLED)
	$(BIN)/python -m tests.soak.kills --kills 200
	HEADWAY_RACE_MOVES=50 $(BIN)/python -m pytest -q -m '' tests/tasks/test_champion_race.py
	$(BIN)/python -m tests.soak.orphans --times 10 --json soak-faults.json
	$(BIN)/python -m tests.soak.orphans --times 50 --only connections --json soak-connections.json
	$(BIN)/python -m tests.soak.hangs --times 100 --only hangs slow --json soak-hangs.json
	$(BIN)/python -m pytest -q -m soak

# All that tests import, on the core that mypy leaves idle: each of their processes would compile it for itself.
compiled: $(INSTALLED)
	-@$(BIN)/python -m pytest --collect-only -qq --ignore=tests/cluster > /dev/null 2>&1

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing into .venv: once, some minutes; the packages come from your package index"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv

# Two commands, each from a fresh clone: `make retrain` (the main job) and `make test`.
PYTHON ?= python3.11
BIN := .venv/bin
INSTALLED := .venv/.installed

# Whoever sets it has every process compile every module again.
unexport PYTHONDONTWRITEBYTECODE

PIP_INSTALL := $(BIN)/pip install --no-compile --quiet --disable-pip-version-check
UV ?= uv
WHOLE := e2e prefect cluster
LOCKED := pyproject.toml --constraint constraints.txt --generate-hashes --universal --python-version 3.11 --no-header \
	--no-annotate --quiet
CUDA := cuda-bindings cuda-pathfinder cuda-toolkit triton nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc \
	nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse \
	nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx
TORCH_CPU_SHA256 := 6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b

.PHONY: install retrain test suite docs quick test-changed test-long test-cluster cluster-packages soak lint style types locks clean
.DEFAULT_GOAL := retrain

# The environment alone, in .venv: nothing is trained or tested.
install: $(INSTALLED)

retrain: $(INSTALLED)
	$(BIN)/headway retrain deployments/stdlib-lm.yaml

# After each edit: what needs neither a process of its own nor much of the processor. tests/tiers.py holds tests to it.
quick: style
	$(BIN)/python -m pytest -n logical --dist loadfile -m unit $(addprefix --ignore=tests/,$(WHOLE))

# What takes seconds comes first. mypy takes a minute of one core, and so does pytest before it has imported all tests:
# each has one.
test: style
	$(MAKE) --no-print-directory --jobs=2 types suite

# Five processes on two cores: a good part of what is tested waits for servers and deadlines.
suite: $(INSTALLED)
	$(BIN)/python -m tests.run_suite -n 5 --dist loadfile --ignore=tests/cluster -m 'not long and not soak'

# What takes longest for a promise each: whole retrains that are killed, resumed and compared, deployments with workers,
# and gangs that compile. CI runs it with `make test`.
test-long: $(INSTALLED)
	$(BIN)/python -m tests.run_suite -n 5 --dist loadfile --ignore=tests/cluster -m 'long and not soak'

# What a change may turn red, by the graph of imports; `make test-changed BASE=HEAD~1` for the last commit.
BASE := main
test-changed: $(INSTALLED)
	@files=$$($(BIN)/python -m tests.changed $(BASE)); \
	printf 'runs:\n%s\n' "$${files:-nothing}"; \
	test -z "$$files" || $(BIN)/python -m pytest -n 5 --dist loadfile $$files

# Hosts of namespaces with sshd, a Slurm of three nodes, an emulated Kubernetes, a PostgreSQL: as root, with the packages
# of tests/cluster/install.sh. Five processes on two cores: half of the time they wait for leases, queues and graces.
test-cluster: $(INSTALLED)
	$(BIN)/python -m tests.run_suite -n 5 --dist loadfile tests/cluster

# Best effort: a test that misses one is skipped, and says so.
cluster-packages:
	-tests/cluster/install.sh

# The documentation as a site that needs no network, in site/.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# 200 random kills, some minutes: every run must end with the undisturbed run's bits. Then 50 moves of the champion by
# each of four writers on two hosts, in a folder and on S3, with MLflow's alias following them and without. Then every way
# of ending a part of a run, ten times: nobody is left; the evidence is soak-faults.json. Then 50 kills, after each of
# which the next attempt's ranks must meet, ten minutes with a fault a minute beside what Young and Daly predict of them,
# and 100 hangs and slow ranks, each of which must be named. Then the tests that prove again what a shorter one
# proves.
soak: $(INSTALLED)
	$(BIN)/python -m tests.soak.kills --kills 200
	HEADWAY_RACE_MOVES=50 $(BIN)/python -m pytest -q -m '' tests/tasks/registry/test_champion_race.py
	$(BIN)/python -m tests.soak.orphans --times 10 --json soak-faults.json
	$(BIN)/python -m tests.soak.orphans --times 50 --only connections --json soak-connections.json
	$(BIN)/python -m tests.soak.ettr --out soak-ettr.json
	$(BIN)/python -m tests.soak.hangs --times 100 --only hangs slow --json soak-hangs.json
	$(BIN)/python -m pytest -q -m soak

lint: style types

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(INSTALLED)
	$(BIN)/mypy

# Every package is held against its digest. Which torch there is, for the CPU or with CUDA, is the index's to say: it is
# fetched by name and then held against the digests of both. What is left for the last step are CUDA's libraries.
$(INSTALLED): pyproject.toml constraints.txt locks/development.txt locks/torch.txt
	@echo "installing into .venv: once, some minutes; the packages come from your package index"
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) --no-deps --require-hashes --requirement locks/development.txt
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --dest .venv/wheels torch==2.13.0
	$(PIP_INSTALL) --no-deps --require-hashes --no-index --find-links .venv/wheels --requirement locks/torch.txt
	rm -r .venv/wheels
	$(PIP_INSTALL) --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	touch $@

# After an edit to the dependencies: the digests of every file of every version in constraints.txt. PyTorch's own index
# has a torch for the CPU alone, whose digest no other index knows.
locks:
	rm -f locks/*.txt  # whose digests would be taken over
	$(UV) pip compile $(LOCKED) --extra dev $(addprefix --no-emit-package ,torch $(CUDA)) --output-file locks/development.txt
	$(UV) pip compile $(LOCKED) --extra kubernetes --extra postgres --extra s3 --output-file locks/image.txt
	sed -n '/^torch==/,/^[^ ]/{/^torch==/p;/^ /p}' locks/image.txt > locks/torch.txt
	sed -i 's/^torch==.*/&\n    --hash=sha256:$(TORCH_CPU_SHA256) \\/' locks/torch.txt

clean:
	rm -rf .venv

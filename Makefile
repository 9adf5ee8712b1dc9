# make train   sets everything up and trains the small GraphMER encoder (5 minutes on 2 cores)
# make test    sets everything up, then lint, notebook freshness, unit tests, every notebook run headlessly
# make faults  kills, tears, full disks, bit flips and loss of power against checkpoints and whole runs, also below
#              Python; ranks that die (about two hours on 2 cores, an estimate; one that was interrupted goes on)
# make kaggle-image   suite and notebooks with the versions of Kaggle's image, without network (8 GB, an hour):
#              PYTHON312=path/to/python3.12, KAGGLE_IMAGE=folder of the environment, TESTS=some of the suite
PYTHON ?= python3
PYTHON312 ?= python3.12
KAGGLE_IMAGE ?= .venv-kaggle
PY := .venv/bin/python

.PHONY: train test lint check docs notebooks bench faults kaggle-image clean

train: .venv/ready
	$(PY) -m lib train configs/graphmer_small.yaml

# two at a time with a thread each: two cores with two threads in each test would only wait for one another
test: lint check
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: .venv/ready
	$(PY) -m ruff check .

check: .venv/ready
	$(PY) build_notebooks.py --check
	$(PY) -m docs.tables --check
	$(PY) -m docs.house --check

docs: .venv/ready
	$(PY) -m docs.tables
	$(PY) -m docs.house

notebooks: .venv/ready
	$(PY) build_notebooks.py

bench: .venv/ready
	$(PY) -m tests.bench.bench_graph
	$(PY) -m tests.bench.bench_graphmer
	$(PY) -m tests.bench.bench_planner
	$(PY) -m tests.bench.bench_glacier
	$(PY) -m tests.bench.bench_legal --variants single --partitions 0 --seeds 0
	$(PY) -m tests.bench.bench_vqa --rows easy,drawn --seeds 0
	$(PY) -m tests.bench.bench_session
	$(PY) -m tests.bench.bench_overhead
	$(PY) -m tests.bench.bench_save
	$(PY) -m tests.bench.bench_resume
	$(PY) -m tests.bench.bench_nodes
	$(PY) -m tests.bench.bench_workers
	$(PY) -m tests.bench.bench_buckets
	$(PY) -m tests.bench.bench_legal_counting

faults: .venv/ready
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.campaign
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.memory
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.disk_calls
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.ranks
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.examples

kaggle-image: $(KAGGLE_IMAGE)/ready
	$(KAGGLE_IMAGE)/bin/python -m tests.notebooks.kaggle_image $(TESTS)

clean:
	rm -rf .venv .venv-kaggle runs

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(KAGGLE_IMAGE)/ready: tests/notebooks/kaggle-image.txt
	$(PYTHON312) -m venv $(KAGGLE_IMAGE)
	$(KAGGLE_IMAGE)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

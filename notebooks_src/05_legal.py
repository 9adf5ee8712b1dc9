# ---
# trainbook:
#   title: "Trainbook 05: legal sentence roles"
#   tasks: [legal]
#   configs: [legal, legal_small]
#   gpu: true
#   internet: false
# ---

# %% [markdown]
# # The roles of sentences in judgments: fine-tuning a BERT encoder within its memory
#
# Press **Run all** and this notebook will:
#
# 1. read judgments whose sentences have roles (facts, argument, statute, ruling, ...), divide them by document, and refuse a
#    document that is in two parts;
# 2. *count*: words, their neighbours, the run of roles through a document. That is hard to beat, so it is what the network is
#    measured against, with intervals by document;
# 3. fine-tune an encoder ([InLegalBERT, arXiv 2209.06049](https://arxiv.org/abs/2209.06049) where it is mounted, cached or can
#    be downloaded, otherwise a small one from scratch, and the notebook says so), and multiply its probabilities into the counts;
# 4. read a judgment that you paste, and show its sentences with roles and probabilities;
# 5. leave a plot, a table and one archive, `outputs.tar.gz`.
#
# It stops by itself before the session ends. Run it again, with this run's output as an input, and it continues where it
# stopped. On Kaggle choose **Settings > Accelerator > GPU T4 x2** first; without a GPU a small model is trained.

# %% shared: library

# %% shared: dependencies

# %%
from trainbook import dependencies

print(dependencies.ensure(dependencies.with_own(["transformers", "pandas", "scipy", "sklearn"])))

# %% [markdown]
# ## Parameters
# Empty or zero means the configuration file's value. `OVERRIDES` takes any key of that file, for example
# `{"workload.encoder.weights": "someone/minilm"}` for another published encoder that is mounted, or
# `{"workload.split.fold": 1}` for another fold.

# %% tags=["parameters"]
CONFIG: str = ""  # empty: the size for Kaggle where there is a GPU, otherwise the small one
DATA_DIR: str = ""  # empty: mounted judgments if some are found, otherwise generated ones
OUTPUT_DIR: str = ""  # empty: the platform's
SMOKE_STEPS: int = 0
SMOKE_ONLY: bool = False  # True: stop after the smoke test, before anything is trained
MAX_STEPS: int = 0
SESSION_MINUTES: float = 0  # 0: the platform's limit
OVERRIDES: dict = {}
RESUME_FROM: str = ""  # empty: the newest checkpoint in the output folder or among the inputs

# %%
from lib import planner
from lib.config import profiles, with_changes
from lib.machine import memory
from lib.text import aligned, duration
from trainbook import doctor, launch, notebook
from trainbook.launch import ensemble, resume, smoke
from trainbook.notebook import widgets
from trainbook.outputs import packing

config = notebook.configure("legal", HOME, globals())

# %% shared: gpu-run

# %% [markdown]
# ## A memory profile
# A profile sets batches, precision and saves at once. The table has what each of them changes in this configuration,
# old -> new. To choose one, write `OVERRIDES["memory.profile"] = "optimized"` in a cell here, and run the cells from
# `notebook.configure` on again: the run, the plan and the memory panel then all follow it.

# %%
rows = []
for name in profiles.names():
    _, changes = profiles.apply(with_changes(config, {"memory.profile": name}), has_gpu=True)
    rows.append([name, ", ".join(change.partition(": ")[2] for change in changes)])
notebook.show(aligned(rows, left={0, 1}))

# %% [markdown]
# ## Data
# Judgments as a folder of `sentence<TAB>role` files, or a table: `OVERRIDES = {"workload.source.files": "*.csv",
# "workload.columns.sentence": "text"}` names it. The counts say what matched, and what did not. Counting takes up to a minute.

# %% shared: prepare

# %% shared: memory-run

# %% [markdown]
# ## Three ways to split a batch of 16, for BERT-base and BERT-large
# Predicted for one T4 with the inputs of this configuration, without a GPU; for BERT-base, which InLegalBERT is, also with
# all layers recomputed in the backward pass. Memory is that of the largest batch; the last columns are five epochs over
# 1,000, 5,000 and 10,000 judgments as long as these.

# %%
ways = {
    "default": {"training.micro_batch": 16, "training.precision": "fp32"},
    "optimized": {"memory.profile": "optimized"},
    "ultra-low": {"memory.profile": "ultra_low"},
}
samples = run.task.datasets()["train"]
documents = len(run.task.documents["train"])
share = samples.lengths.mean() / run.config.workload.context.length  # buckets leave next to no padding
published = {"training.effective_batch": 16, "workload.encoder.weights": "law-ai/InLegalBERT"}
again = {"training.gradient_checkpointing": "all"}
recomputed = {f"{name}, recomputed": {**way, **again} for name, way in ways.items()}
rows = [["", "micro x passes", "peak GiB", "fits", *(f"{files:,} judgments" for files in (1_000, 5_000, 10_000))]]
for size, variants in {"base": {**ways, **recomputed}, "large": ways}.items():
    for name, way in variants.items():
        changes = {"training.micro_batch_slots": 1, **published, "workload.encoder.planned_as": size, **way}
        option = planner.as_configured(with_changes(config, changes), planner.find_card("t4"))
        each = 5 * len(samples) / documents * option.expected_seconds * share / 16
        rows.append([
            f"{size}, {name}", f"{option.micro_batch} x {option.passes}", f"{option.prediction.peak_bytes / 2**30:.2f}",
            "yes" if option.fits else "no", *(duration(files * each) for files in (1_000, 5_000, 10_000)),
        ])  # fmt: skip
notebook.show(aligned(rows, left={0}))

# %% shared: smoke-run

# %% shared: resume-run

# %% shared: full-run

# %% [markdown]
# ## Metrics
# Losses, validation metrics (once the run is completed, beside the counts alone), speed and learning rate; below
# them memory, GPU use and the wait for data. All are from `metrics.csv`. `macro_f1` is that of counts and network together, `network_macro_f1` that of the network alone.

# %% shared: picture

# %% [markdown]
# ## Evaluation beside counting
# Each row is a method, from the commonest role to counts and network multiplied; the model is the last one. The heading of the
# last column names the strongest counting, by documents outside of the test, over which a method gains. In brackets: intervals over
# draws of whole documents, because the sentences of one are alike. `evaluation.csv` has all of it, with the F1 of each role.

# %% shared: compare

# %%
from IPython.display import display

if summary.reason == "completed":
    display(notebook.picture(run.folder / "plots" / "confusion.png"))

# %% [markdown]
# ## Your own judgment
# Paste a text between the quotes and run the cell: its sentences with their roles. All probabilities are in `predictions/`,
# as JSON lines; from the command line it is `trainbook predict outputs.tar.gz FOLDER OUT`.

# %%
PASTED = """
The appellant was employed as a clerk by the respondent. On the said date a complaint was lodged with the police.
The trial court convicted the accused and sentenced him to imprisonment. Learned counsel for the appellant submitted
that the order was without jurisdiction. Section 34 of the Act provides that every person shall be liable.
In our opinion the view does not stand the test of reason. The appeal is allowed with costs throughout.
"""

# %%
import json

if summary.reason == "completed":
    (run.folder / "pasted.txt").write_text(PASTED, "utf-8")
    print(ensemble.run(run.folder, run.folder / "pasted.txt", run.folder / "predictions"))
    lines = (run.folder / "predictions" / "pasted.jsonl").read_text("utf-8").splitlines()
    rows = [[one["role"], f"{one['probability']:.2f}", one["text"]] for one in map(json.loads, lines)]
    notebook.show(aligned([["role", "probability", "sentence"], *rows], left={0, 2}))

# %% shared: packaging

# %% [markdown]
# ## Troubleshooting
#
# | what you see | what to do |
# |---|---|
# | "No GPU" | Settings > Accelerator > GPU T4 x2, then run again. The quota is 30 GPU hours a week. |
# | "begins with an encoder from scratch" | Add InLegalBERT, or any encoder, as a Kaggle model or data set (Add Input) and name it: `OVERRIDES = {"workload.encoder.weights": "owner/name", "run.name": "published"}`. Or switch the internet on. |
# | "The embedded default is used", but you mounted data | Set `DATA_DIR` to its slug (`owner/name`), or to the folder in it that holds the files. |
# | a line of the data is refused | The message names file and line. Correct it, or allow a number of bad lines: `OVERRIDES = {"workload.bad_input_limit": 10}`. |
# | documents "are in two parts" | The same judgment is there twice, perhaps under two names. Remove one. |
# | "Memory ran out at step ..." | Do nothing: the step was repeated in smaller micro-batches. To avoid that next time, set `training.micro_batch` to the number in the message. |
# | the network counts 0 beside the counts | It adds nothing that counting does not know: take a published encoder, more documents, or more epochs. |
# | stopped with reason `deadline` | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |
# | "cannot be resumed with this configuration", or "was completed with another" | Something was edited since. Restore the earlier value, or write the line that the message gives: it trains the edit as a run of its own. |

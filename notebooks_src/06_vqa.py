# ---
# trainbook:
#   title: "Trainbook 06: questions about pictures"
#   tasks: [vqa]
#   configs: [vqa, vqa_small]
#   gpu: true
#   internet: false
# ---

# %% [markdown]
# # Questions about pictures, answered in free text: a 450 M model within a T4
#
# Press **Run all** and this notebook will:
#
# 1. read questions with answers and pictures (JSON lines, or a table whose columns you name), look at every picture, divide them
#    by picture, and refuse what leaks;
# 2. learn what can be answered *without* looking: the commonest answer by type, a regression on the question's words. That is
#    what the network is measured against, with intervals by picture, and what answers unless validation shows that it gains;
# 3. train an encoder of pictures and one of questions (BLIP and PhoBERT where they are mounted, cached or can be downloaded,
#    otherwise small ones from scratch, and the notebook says so), fuse all patches with all words, and let a T5 decoder (ViT5) write
#    `<answer>..</answer><reasoning>[TYPE] ..</reasoning>`, in stages that weigh answer, reasoning and form differently;
# 4. answer your own question about your own picture;
# 5. leave a plot, tables, and one archive, `outputs.tar.gz`.
#
# It stops by itself before the session ends. Run it again, with this run's output as an input, and it continues where it
# stopped. On Kaggle choose **Settings > Accelerator > GPU T4 x2** first; without a GPU a small model is trained.

# %% shared: library

# %% shared: dependencies

# %%
from trainbook import dependencies

print(dependencies.ensure(dependencies.with_own(["transformers", "pandas", "PIL", "sklearn"])))

# %% [markdown]
# ## Parameters
# Empty or zero means the configuration file's value. `OVERRIDES` takes any key of that file, for example
# `{"workload.image.weights": "someone/blip"}` for mounted weights, or `{"workload.columns.answer": "câu trả lời"}` for the
# column with the answers.

# %% tags=["parameters"]
CONFIG: str = ""  # empty: the size for Kaggle where there is a GPU, otherwise the small one
DATA_DIR: str = ""  # empty: mounted questions if some are found, otherwise drawn shapes with Vietnamese questions
OUTPUT_DIR: str = ""  # empty: the platform's
SMOKE_STEPS: int = 0
SMOKE_ONLY: bool = False  # True: stop after the smoke test, before anything is trained
MAX_STEPS: int = 0
SESSION_MINUTES: float = 0  # 0: the platform's limit
OVERRIDES: dict = {}
RESUME_FROM: str = ""  # empty: the newest checkpoint in the output folder or among the inputs

# %%
from lib import planner
from lib.config import with_changes
from lib.machine import memory
from lib.planner.table import quota
from lib.text import aligned, duration
from trainbook import doctor, launch, notebook
from trainbook.launch import ensemble, resume, smoke
from trainbook.notebook import widgets
from trainbook.outputs import packing

config = notebook.configure("vqa", HOME, globals())

# %% shared: gpu-run

# %% [markdown]
# ## Data
# Questions, their types, and which rows did not match. Every picture is decoded once, within limits on its size; a row without
# its picture is counted and never gets another. The stages of the run and their first steps are below.

# %% shared: prepare

# %%
stages = run.config.workload.stages
rows = [[name, f"{one.from_steps:,}", *(f"{w:g}" for w in (one.answer, one.reasoning, one.format))]
        for name, one in stages.items()]  # fmt: skip
notebook.show(aligned([["stage", "from step", "answer", "reasoning", "form"], *rows], left={0}))

# %% [markdown]
# ## Memory check and plan
# The card's memory that the run will take, by a trace of its real training step, and of a beam search at its end. The plan
# splits the effective batch into *micro-batches* that fit, and never changes its size. The run follows it unless
# `training.micro_batch` is set. The buttons measure again and free unused memory.

# %% shared: panels

# %% [markdown]
# ## Where memory runs out: the rungs of the ladder
#
# | rung | how | who takes it |
# |---|---|---|
# | 1. a smaller micro-batch | the step is repeated in halves; the effective batch stays | **the engine**, by itself |
# | 2. smaller evaluations | the batch of a beam search is repeated in halves from where it was; results stay | **the engine**, by itself |
# | 3. recomputation | `training.gradient_checkpointing`: 12 for the decoder, `all` with both encoders | the plan where nothing else fits, else you |
# | 4. shorter answers | `workload.decoder.length`: 128 in place of 160; longer reasonings are cut | you |
# | 5. fewer beams | `workload.writing.beams`: 2 in place of 4 | you |
#
# On one T4 (13.0 of 14.2 GiB may be planned) the 450 M weights take, with 160 tokens and 384 pixels: in micro-batches of 3
# 12.2 GiB, 11.4 with the decoder recomputed and 9.6 with all layers; of 2: 11.3, 10.7 and 9.5. A beam search of 2 questions
# with 4 beams takes 7.8. The cell below has the first rungs for the configuration of this run.

# %%
half = max(1, run.config.training.effective_batch // run.config.training.micro_batch_slots // 2)
rungs = {
    "half a slot": {"training.micro_batch": half, "training.gradient_checkpointing": 0},
    "and recomputed": {"training.micro_batch": half, "training.gradient_checkpointing": "all"},
    "and shorter": {
        "training.micro_batch": half, "training.gradient_checkpointing": "all",
        "workload.decoder.length": max(16, run.config.workload.decoder.length * 4 // 5),
    },
}  # fmt: skip
rows = [["", "micro x passes", "peak GiB", "fits", "seconds a step"]]
for name, changes in rungs.items():
    changed = with_changes(run.config, {"training.micro_batch_slots": 1, **changes})
    option = planner.as_configured(changed, planner.find_card("t4"))
    split, peak = f"{option.micro_batch} x {option.passes}", f"{option.prediction.peak_bytes / 2**30:.2f}"
    rows.append([name, split, peak, "yes" if option.fits else "no", f"{option.expected_seconds:.3g}"])
notebook.show(aligned(rows, left={0}))

# %% shared: smoke-run

# %% [markdown]
# ## How many sessions
# From the speed that was measured here, beside the plan's and beside what others have reported for such a model: 35 minutes an
# epoch, so 100 epochs are 58 hours. That is two weeks of Kaggle's 30 GPU hours, in six sessions. Evaluations come on top.

# %%
steps, samples = run.config.training.max_steps, len(run.task.datasets()["train"])
seconds = {"measured here": steps / smoke.few_steps(run).steps_per_second, "reported, 100 epochs": 100 * 35 * 60}
if run.plan:
    seconds["planned for this card"] = run.plan.seconds(steps)
rows = [[name, duration(time), *map(str, quota(time))] for name, time in seconds.items()]
notebook.show(aligned([["", "whole run", "of a week's quota", "sessions"], *rows], left={0}))

# %% shared: resume-run

# %% [markdown]
# ## Full run
# Interrupting this cell once finishes the step and saves; run it again to continue. Yes/no questions stay at what is common
# for the first third of a run and break away later: do not judge it before. A figure of it is drawn again every few
# seconds: loss, metrics, the best validation, memory and the time left.

# %% shared: train

# %% [markdown]
# ## Metrics
# Losses, validation metrics, speed and learning rate, and below them memory, GPU use and the wait for data, from
# `metrics.csv`; a dotted line with its name where a stage begins.
# `exact` is the share of exact answers, which means the same in every stage: it decides which weights are best.

# %% shared: picture

# %% [markdown]
# ## Evaluation beside rules that do not look
# Each row is a rule that sees the question alone; the model is the last one, and the last column is what it gains over the
# strongest of them. In brackets: intervals over draws of whole pictures. Token F1 flatters: always "màu đen" has .54.

# %% shared: compare

# %% [markdown]
# ## Your own picture and question
# Name a picture and ask. Without one, a picture of the test is asked. From the command line it is
# `trainbook predict outputs.tar.gz FOLDER OUT`, with a folder of pictures and a text file of questions beside each. The
# answers are records of a teacher, with probabilities: a smaller student can be trained on them.

# %%
PICTURE = ""
QUESTION = ""

# %%
import shutil
from pathlib import Path

if summary.reason == "completed":
    record = run.task.parts["test"].samples[0]
    mine = run.folder / "asked"
    mine.mkdir(exist_ok=True)
    picture = Path(PICTURE or record.image)
    shutil.copyfile(picture, mine / picture.name)
    (mine / picture.name).with_suffix(".txt").write_text(f"{QUESTION or record.question}\n", "utf-8")
    print(ensemble.run(run.folder, mine, run.folder / "predictions"))
    print((run.folder / "predictions" / "answers.jsonl").read_text("utf-8"))

# %% shared: packaging

# %% [markdown]
# ## Troubleshooting
#
# | what you see | what to do |
# |---|---|
# | "No GPU" | Settings > Accelerator > GPU T4 x2, then run again. The quota is 30 GPU hours a week. |
# | "The run begins with ... from scratch" | Add BLIP, PhoBERT and ViT5 as Kaggle models or data sets (Add Input) and name them: `OVERRIDES = {"workload.text.weights": "owner/phobert", "run.name": "published"}`. Or switch the internet on: of those on the hub, weights that are a pickle alone must be mounted. |
# | "The embedded default is used", but you mounted data | Set `DATA_DIR` to its slug (`owner/name`), or to the folder in it that holds the files. |
# | "There is no picture ..." | Name where pictures lie: `OVERRIDES = {"workload.source.picture": "images/{image}.jpg"}`, or another input as `workload.source.images`. `workload.bad_input_limit` leaves some rows out. |
# | "Memory ran out at step ..." | Do nothing: the step was repeated in smaller micro-batches. To avoid that next time, set `training.micro_batch` to the number in the message, or take rung 3. |
# | "The work goes on with ... samples at once" | Do nothing: the beam search went on from there. |
# | exact stays where rules are | Wait for a third of the run. Then: a lower learning rate, at most 4 questions of a picture together, more pictures in a batch. |
# | stopped with reason `deadline` | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |
# | "cannot be resumed with this configuration", or "was completed with another" | Something was edited since. Restore the earlier value, or write the line that the message gives: it trains the edit as a run of its own. |

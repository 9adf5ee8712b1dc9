# ---
# trainbook:
#   title: "Trainbook 03: Glacier fine-tuning"
#   tasks: [glacier]
#   configs: [glacier_finetune, glacier_finetune_small, glacier_pretrain, glacier_pretrain_small]
#   gpu: true
#   internet: false
# ---

# %% [markdown]
# # Glaciers, second of three: fine-tuning in five folds
#
# Press **Run all** and this notebook will:
#
# 1. cut five-band scenes (GlacierHack's, if you mount them, or your own, or else generated ones) into tiles, and split them
#    into a test and five folds with equal shares of ice, debris and lakes;
# 2. start five networks from the weights of *02 pretraining*, whose seven bands are brought over to five by name, and train
#    each on four folds, with focal, Dice, MCC and boundary loss and tiles drawn towards wanted shares of classes;
# 3. print each fold's metrics beside those of gradient boosting of single pixels;
# 4. leave plots, tables and one archive, `outputs.tar.gz`, that *04 ensemble* lets vote.
#
# Add the output of *02 pretraining* as an input. Without it a short pretraining comes first, and says so. The folds are a
# queue: when the session ends, run this again with its own output as an input, and it continues with what is unfinished.

# %% tags=["carrier"]
# The build puts lib here.

# %% [markdown]
# ## Dependencies
# Every package is checked. What is missing is installed when there is internet, and named when there is none. PyTorch is
# never installed: the platform's own build fits its GPUs.

# %%
from lib import dependencies

print(dependencies.ensure(dependencies.PACKAGES | dependencies.GLACIER))

# %% [markdown]
# ## Parameters
# Empty or zero means: as in the configuration file. `OVERRIDES` takes any key of it, for example
# `{"optimizer.lr": 3e-5, "queue.folds": 2}`.

# %% tags=["parameters"]
CONFIG: str = ""  # empty: the size for Kaggle where there is a GPU, otherwise the small one
DATA_DIR: str = ""  # empty: mounted scenes if some are found, otherwise generated scenes
OUTPUT_DIR: str = ""  # empty: the platform's
SMOKE_STEPS: int = 0
MAX_STEPS: int = 0
SESSION_MINUTES: float = 0  # 0: the platform's limit
OVERRIDES: dict = {}
RESUME_FROM: str = ""  # empty: the newest checkpoint in the output folder or among the inputs

# %%
from lib import doctor, launch, notebook
from lib.launch import queue
from lib.machine import memory
from lib.notebook import widgets
from lib.report import outputs
from lib.report.summary import Summary

runs = notebook.configure_queue("glacier_finetune", HOME, globals())
print("The queue:", ", ".join(entry.name for entry in runs))

# %% [markdown]
# ## GPU check
# What the machine has, each finding with a verdict and what to do. What is bad would end the run later, so it stops here.

# %%
doctor.admit(runs[-1].config)

# %% [markdown]
# ## Data
# Scenes are cut into tiles once; what cannot be used is named by its file. Whole scenes go to the test or to a fold, so
# that no ground is on two sides. The last two rows of the table say how training draws its tiles.

# %%
run = launch.prepare(runs[-1].config)
print(run.task.describe_data())
print(*run.lengths, sep="\n")

# %% [markdown]
# ## Memory check and plan
# What one run of the queue will take of the card, by a trace of its real training step, and what is in use now.

# %%
widgets.plan_panel(notebook.plan(run), OVERRIDES)
widgets.memory_panel()

# %% [markdown]
# ## Smoke test
# A few real steps of each kind of run, thrown away, where no earlier run tells how fast it is.

# %%
rates = queue.measure(runs)
memory.clear_memory()

# %% [markdown]
# ## Resume
# How far each run is, in the output folder or in a mounted earlier output, and what all of them together will take.

# %%
print(queue.table(runs, rates))

# %% [markdown]
# ## Full run
# One run after another. The session's end may fall anywhere: the next session continues with those that are unfinished,
# each at its own checkpoint. Interrupting this cell once finishes the step and saves; run it again to continue.

# %%
code = queue.run_queue(runs)
print(queue.table(runs))

# %% [markdown]
# ## Metrics
# For each run of the queue: losses, validation metrics beside the trivial baseline, learning rate and speed.

# %%
from IPython.display import Image, display

drawn = [entry.folder / "plots" / "metrics.png" for entry in runs]
display(*(Image(filename=str(path)) for path in drawn if path.is_file()))

# %% [markdown]
# ## Evaluation beside the trivial baseline
# *Validation* is the best on the fold that was held out, *test* the same weights on scenes that no fold saw. The criteria
# of the configuration are judged, not enforced.

# %%
from lib.tasks.glacier import figures

print(queue.verdict(runs))
scores = queue.scores(runs)
for entry in runs:
    if entry.name in scores:
        print(f"\n{entry.name}", notebook.compare(Summary.read(entry.folder)), sep="\n")

# %%
if scores:
    kinds = ("validation", "test")
    display(Image(filename=str(figures.runs(scores, kinds, runs[-1].folder / "plots" / "folds.png"))))
    last = [entry.folder for entry in runs if entry.name in scores][-1]
    display(*(Image(filename=str(last / "plots" / f"{name}.png")) for name in ("predictions", "confusion")))

# %% [markdown]
# ## Packaging
# The last line is the archive to download: on Kaggle in the **Output** tab after *Save Version*. For the ensemble, add this
# notebook's output as an input of *04 ensemble*.

# %%
print(outputs.table(run.output_dir))

# %% [markdown]
# ## Troubleshooting
#
# | what you see | what to do |
# |---|---|
# | "No GPU" | Settings > Accelerator > GPU T4 x2, then run again. The quota is 30 GPU hours a week. |
# | the embedded default is used, but you mounted data | Set `DATA_DIR` to its slug (`owner/name`), or to the folder in it that holds `Band1` or the patches. |
# | scenes "cannot be used" | Each line names a file and what to do. Mend them, or leave some out: `OVERRIDES = {"workload.bad_input_limit": 10}`. |
# | "No scene has all of its bands" | The files are named differently in each folder: give `workload.source.name_pattern`, as the message says. |
# | "the value ... its coding is" | The mask has other values: set `workload.source.codes`, background first. |
# | "Memory ran out at step ..." | Nothing: the step was repeated in smaller pieces. To save the detour, set `training.micro_batch` to the number it found. |
# | "a small one is made here" | No pretraining was found. Run *02 pretraining* and add its output as an input. |
# | "The initial weights ..." | Names or numbers of bands differ: set `workload.initial.bands` to those of the pretraining. |
# | a run failed and the others continued | Its line says why. Run all again: it is tried anew, from its checkpoint. |
# | "The session ends" | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |

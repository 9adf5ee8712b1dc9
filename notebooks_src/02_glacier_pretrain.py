# ---
# trainbook:
#   title: "Trainbook 02: Glacier pretraining"
#   tasks: [glacier]
#   configs: [glacier_pretrain, glacier_pretrain_small]
#   gpu: true
#   internet: false
# ---

# %% [markdown]
# # Glaciers, first of three: pretraining
#
# Press **Run all** and this notebook will:
#
# 1. cut multispectral scenes into tiles: patches of the Hindu Kush Himalaya if you mount them or give their address, scenes
#    of your own, or else generated ones;
# 2. train a U-Net with a ResNet-34 encoder and scSE attention on seven bands, with focal and Dice loss;
# 3. print Matthews' correlation (MCC) and each class's IoU on held-out ground beside what gradient boosting of single pixels
#    reaches there;
# 4. leave plots, tables and one archive, `outputs.tar.gz`, that *03 fine-tuning* starts from.
#
# It stops by itself before the session ends. Run it again, with this run's output as an input, and it continues where it
# stopped. On Kaggle choose **Settings > Accelerator > GPU T4 x2** first; without a GPU a small model is trained.

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
# `{"optimizer.lr": 1e-4, "workload.download": ["https://.../patches.tar.gz"]}`.

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
from lib.launch import resume, smoke
from lib.machine import memory
from lib.notebook import widgets
from lib.report import outputs

config = notebook.configure("glacier_pretrain", HOME, globals())

# %% [markdown]
# ## GPU check
# What the machine has, each finding with a verdict and what to do. What is bad would end the run later, so it stops here.

# %%
doctor.admit(config)

# %% [markdown]
# ## Data
# Scenes are cut into tiles one at a time, so memory stays small whatever the data's size; what was cut stays in the scratch
# folder, and an interrupted cut is continued. With `workload.download` archives are fetched, unpacked scene by scene and
# deleted (a fetch that was cut off is continued too). Printed are the files of each band, what was left out and why, which tiles
# train, and the shares of the classes. Ground that is held out is never shown in training.

# %%
run = launch.prepare(config)
print(run.task.describe_data())
print(*run.lengths, sep="\n")

# %%
from IPython.display import Image, display

Image(filename=str(run.task.draw_tiles(run.folder / "plots" / "tiles.png")))

# %% [markdown]
# ## Memory check and plan
# What the run will take of the card, by a trace of its real training step, and what is in use now. The effective batch
# stays what it is; the plan only says in how many pieces it is computed. *Use this plan* puts it into `OVERRIDES`; the
# other buttons measure again and free unused memory.

# %%
widgets.plan_panel(notebook.plan(run), OVERRIDES)
widgets.memory_panel()

# %% [markdown]
# ## Smoke test
# A few real steps in a folder that is thrown away: they show that everything works, how much memory each phase takes, and
# how long the full run will be. Where the peak is above 92 % of the card, the notebook stops here and says what to change.

# %%
print(smoke.test(run))
memory.clear_memory()

# %% [markdown]
# ## Resume
# Which checkpoint was found, and how many steps are left.

# %%
print(resume.describe_resume(run, resume.find_checkpoint(run)))

# %% [markdown]
# ## Full run
# Interrupting this cell once finishes the step and saves; run it again to continue.

# %%
summary = launch.train(run)
print(f"{summary.reason} at step {summary.step:,} of {run.config.training.max_steps:,}")

# %% [markdown]
# ## Metrics
# Losses, validation metrics beside the trivial baseline (dashed), learning rate and speed, out of `metrics.csv`.

# %%
Image(filename=str(run.folder / "plots" / "metrics.png"))

# %% [markdown]
# ## Evaluation beside the trivial baseline
# *Trivial* is gradient boosting on the bands of a single pixel, fitted to the same training tiles: what it lacks is the
# surroundings. Pixels without data or label count nowhere, and each pixel counts once. A class that the held-out ground
# does not show is left out instead of counted as right.

# %%
print(notebook.compare(summary))

# %%
if summary.reason == "completed":
    display(*(Image(filename=str(run.folder / "plots" / f"{name}.png")) for name in ("predictions", "confusion")))

# %% [markdown]
# ## Packaging
# The last line is the archive to download: on Kaggle in the **Output** tab after *Save Version*. To fine-tune, add this
# notebook's output as an input of *03 fine-tuning*.

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
# | an archive could not be fetched | Settings > Internet on; run again, what is there is kept. Or mount the data as a data set. |
# | stopped with reason `deadline` | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |
# | "cannot be resumed with this configuration" | The message names what differs. Go back to it, or choose another `run.name` in `OVERRIDES`. |

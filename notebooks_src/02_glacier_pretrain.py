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
# 1. cut multispectral scenes into tiles: patches of the Hindu Kush Himalaya if you mount them or give their address, your
#    own scenes, or else generated ones;
# 2. train a U-Net with a ResNet-34 encoder and scSE attention on seven bands, with focal and Dice loss;
# 3. print Matthews' correlation (MCC) and each class's IoU on held-out ground beside what gradient boosting reaches there, of
#    single pixels and with their surroundings, and the worst scenes;
# 4. leave plots, tables and one archive, `outputs.tar.gz`, that *03 fine-tuning* starts from.
#
# It stops by itself before the session ends. Run it again, with this run's output as an input, and it continues where it
# stopped. On Kaggle choose **Settings > Accelerator > GPU T4 x2** first; without a GPU a small model is trained.

# %% shared: library

# %% shared: dependencies

# %% shared: ensure-glacier

# %% [markdown]
# ## Parameters
# Empty or zero means the configuration file's value. `OVERRIDES` takes any key of that file, for example
# `{"optimizer.lr": 1e-4, "workload.download": ["https://.../patches.tar.gz"]}`.

# %% shared: parameters-glacier

# %%
from lib.machine import memory
from trainbook import doctor, launch, notebook
from trainbook.launch import resume, smoke
from trainbook.notebook import widgets
from trainbook.outputs import packing

config = notebook.configure("glacier_pretrain", HOME, globals())

# %% shared: gpu-run

# %% [markdown]
# ## Data
# Scenes are cut into tiles one at a time, so memory stays small whatever the data's size. The tiles are kept in the scratch
# folder, and an interrupted cut is resumed. With `workload.download` archives are downloaded, unpacked scene by scene and
# deleted. The cell prints the files of each band, what was left out and why, which
# tiles train, and the shares of the classes. Training never sees ground that is held out.

# %% shared: prepare

# %%
from IPython.display import display

notebook.picture(run.task.draw_tiles(run.folder / "plots" / "tiles.png"))

# %% shared: memory-run

# %% shared: smoke-run

# %% shared: resume-run

# %% shared: full-run

# %% shared: metrics-run

# %% [markdown]
# ## Evaluation beside the baselines
# *Trivial* is the strongest of three boostings that are fitted to the same training tiles: of a pixel's bands alone, with the
# means around it, and with every class counting alike. Pixels without data or label are not counted, and each other pixel
# counts once. A class that the held-out ground does not have is left out, and not counted as right.

# %% shared: compare

# %%
if summary.reason == "completed":
    display(*(notebook.picture(run.folder / "plots" / f"{name}.png") for name in ("worst", "confusion")))

# %% [markdown]
# ## Packaging
# The last line is the archive to download: on Kaggle in the **Output** tab after *Save Version*. To fine-tune, add this
# notebook's output as an input of *03 fine-tuning*.

# %% shared: archive

# %% [markdown]
# ## Troubleshooting
#
# | what you see | what to do |
# |---|---|
# | "No GPU" | Settings > Accelerator > GPU T4 x2, then run again. The quota is 30 GPU hours a week. |
# | "The embedded default is used", but you mounted data | Set `DATA_DIR` to its slug (`owner/name`), or to the folder in it that holds `Band1` or the patches. |
# | scenes "cannot be used" | Each line names a file and what to do. Correct the files, or leave some out: `OVERRIDES = {"workload.bad_input_limit": 10}`. |
# | "No scene has all of its bands" | The files are named differently in each folder: give `workload.source.images` and `masks`, as the message says. |
# | "The mask ... holds the value ..." | Set `workload.source.codes` to the mask's values, background first. |
# | "Memory ran out at step ..." | Do nothing: the step was repeated in smaller micro-batches. To avoid that next time, set `training.micro_batch` to the number in the message. |
# | an archive could not be downloaded | Switch the internet on in Settings and run again, or mount the data as a data set. |
# | stopped with reason `deadline` | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |
# | "cannot be resumed with this configuration", or "was completed with another" | Something was edited since. Restore the earlier value, or write the line that the message gives: it trains the edit as a run of its own. |

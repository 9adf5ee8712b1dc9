# ---
# trainbook:
#   title: "Trainbook 03: Glacier fine-tuning"
#   tasks: [glacier]
#   configs: [glacier_finetune, glacier_finetune_small, glacier_rare, glacier_rare_small, glacier_compete, glacier_compete_small, glacier_pretrain, glacier_pretrain_small]
#   gpu: true
#   internet: false
# ---

# %% [markdown]
# # Glaciers, second of three: fine-tuning in five folds
#
# Press **Run all** and this notebook will:
#
# 1. cut five-band scenes (GlacierHack's if you mount them, your own, or else generated ones) into tiles, and split them into
#    a test part and five folds with equal shares of ice, debris and lakes;
# 2. initialise five networks with the weights of *02 pretraining*, whose seven bands are matched to five by name, and train
#    each on four folds, with focal, Dice, MCC and boundary loss, and with tiles sampled towards wanted shares of classes;
# 3. print each fold's metrics beside those of gradient boosting, with intervals over scenes, and the worst scenes;
# 4. leave plots, tables and one archive, `outputs.tar.gz`, that *04 ensemble* lets vote.
#
# Add the output of *02 pretraining* as an input. Without it, the notebook begins with a short pretraining and prints so. The
# folds are a queue: when the session ends, run this again with its own output as an input, and it resumes what is unfinished.

# %% shared: library

# %% shared: dependencies

# %% shared: ensure-glacier

# %% [markdown]
# ## Parameters
# Empty or zero means the configuration file's value. `OVERRIDES` takes any key of that file, for example
# `{"optimizer.lr": 3e-5, "folds": 2}`. `CONFIG = "configs/glacier_rare.yaml"` is the preset that finds rare classes:
# crops centred on lakes and other losses. The names of the queue's runs, printed below, say which preset they are of.

# %% shared: parameters-glacier

# %%
from lib.machine import memory
from lib.training.summary import Summary
from trainbook import doctor, launch, notebook
from trainbook.launch import queue
from trainbook.notebook import widgets
from trainbook.outputs import packing

runs = notebook.configure_queue("glacier_finetune", HOME, globals())
print("The queue:", ", ".join(entry.name for entry in runs))

# %% shared: gpu-queue

# %% [markdown]
# ## Data
# Scenes are cut into tiles once; each file that cannot be used is named. A whole scene goes to the test part or to one fold,
# so that no ground is in two parts. The last two rows of the table show how training samples its tiles. Below it is
# which published encoder boosting sees; without one, how to add it.

# %% shared: prepare-queue

# %% shared: memory-queue

# %% shared: smoke-queue

# %% shared: resume-queue

# %% shared: full-queue

# %% shared: metrics-queue

# %% [markdown]
# ## Evaluation beside the baselines
# *Validation* is the best score on the held-out fold, and *test* is the score of the same weights on scenes that no fold saw.
# The queue's criteria are judged, not enforced. The last fold is shown in detail; the folder of
# each has `evaluation.csv` and `scenes.csv`.

# %%
import pandas

from trainbook.outputs import figure

notebook.show(queue.verdict(runs))
scores = queue.scores(runs)
last = next((entry.folder for entry in reversed(runs) if entry.name in scores), None)
if last:
    notebook.show(f"{last.name}\n{notebook.compare(Summary.read(last))}")

# %%
if scores:
    drawing, ((axes,),) = figure.grid(1, 1, 6.0)
    axes.set_axis_on()
    means = pandas.DataFrame(scores).T.rename(lambda name: name.rpartition("-")[2])
    means.plot.bar(ax=axes, rot=0, title=", ".join(f"{name}: mean {mean:.3f}" for name, mean in means.mean().items()))
    display(notebook.picture(figure.save(drawing, runs[-1].folder / "plots" / "folds.png")))
    drawn = [last / "plots" / f"{name}.png" for name in ("worst", "confusion")]
    display(*(notebook.picture(path) for path in drawn if path.is_file()))

# %% [markdown]
# ## Packaging
# The last line is the archive to download: on Kaggle in the **Output** tab after *Save Version*. For the ensemble, add this
# notebook's output as an input of *04 ensemble*.

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
# | "No completed ... was found" | The pretraining is missing, and a short one is made. Run *02 pretraining* and add its output as an input. |
# | "The initial weights ..." | Names or numbers of bands differ: set `workload.initial.bands` to those of the pretraining. |
# | a run failed and the others continued | Its line says why. Run all again: the run resumes from its checkpoint. |
# | "The session ends" | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |

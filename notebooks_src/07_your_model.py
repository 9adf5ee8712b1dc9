# ---
# trainbook:
#   title: "Trainbook 07: your competition, or your own model"
#   tasks: [competition]
#   gpu: true
#   internet: false
# ---

# %% [markdown]
# # Your competition, or your own model
#
# Mount a competition, and press **Run all**: the settings are proposed from its files, and the run ends with
# `submission.csv`. Two cells below are yours to change: one of settings, one of a model. Everything else stays as it is.
# Without your data the notebook learns the 1,797 handwritten digits of scikit-learn, laid out as a small competition.
#
# The notebook will:
#
# 1. check the machine, find and validate the data, and plan what fits the card's memory;
# 2. train, on both GPUs where there are two, and resume an earlier session's run where it stopped;
# 3. print the scores on the test data beside those of a strong simple method, and say which is better;
# 4. write `submission.csv` in the form of the sample, and print what to expect of it;
# 5. leave a plot, a table and one archive, `outputs.tar.gz`, which predicts elsewhere.
#
# It stops by itself before the session ends. Run it again, with this run's output as an input, and it continues where it
# stopped. Edit it and run it again: the edit is a run of its own, and a table compares them. On Kaggle choose **Settings > Accelerator > GPU T4 x2** first.

# %% shared: library

# %% shared: dependencies

# %%
from trainbook import dependencies, notebook

print(dependencies.ensure())

# %% [markdown]
# ## Settings
# Leave `SETTINGS` empty for the first run. The block that your files propose is printed below, with a reason for each
# line. No file names the metric: copy the block into this cell, write the metric in the competition's words, and run all
# again. `trainbook new my --like competition --data FOLDER` writes the same block.
#
# | your files | write |
# |---|---|
# | a competition: tables, pictures, sounds, masks in run lengths | `SETTINGS = ""`, then the printed block between `"""` and `"""` |
# | pictures in a folder for each class; or the model of the next cell | `SETTINGS = MY_MODEL` |

# %%
MY_MODEL = """
task: my_task.py:Images
run:
  on_change: new  # an edit of model, settings or data is a run of its own: my-2, my-3
data:
  num_workers: 0  # processes that decode images while the model computes: 2 for photographs, none for digits
training:
  epochs: 10  # passes over the training images
  effective_batch: 32  # images of a step, however many cards share them
  micro_batch_slots: 2  # equal parts of a step: two, so that both cards of Kaggle's T4 x2 get one
  evaluate_every_epochs: 1  # a validation after each pass; the best weights are kept
  start_from_baseline: true  # answers are a simple method's, and the network's where it surely gains
optimizer:
  lr: 3.0e-3  # high, for a small model that starts from nothing; an encoder has .03 of it
scheduler:
  warmup_epochs: 1  # statistics of batches and moments settle before the rate is high
checkpoint:
  every_minutes: 10  # what a session that is killed loses at most
workload:
  classes: []  # none: the names of the folders, or those in the table
  target: ""  # the table's column of the class; empty: the one beside the images' names
  size: 0  # pixels: images are scaled to this height and width; 0: the encoder's 224, or 64 from scratch
  encoder: ""  # a published one: the slug of a mounted model or wheel, or a name; empty: one at hand; none: from scratch
  flip: false  # a mirrored digit is another one, or none
"""

SETTINGS = ""  # or MY_MODEL, or the block that was printed, between two lines of three quotes

# %% [markdown]
# ## A model of your own
# `MY_MODEL` trains the class of this cell. Settings with `task: competition` take a model by the form of the files, and
# leave this cell unused. The class is saved to a file, because the processes that train and load data import it from
# there. Write the name of another class behind `task: my_task.py:`.
#
# - `model` returns a fresh model on the CPU.
# - `read` lists the samples, the target last in each; `split` divides them into training, validation and test.
# - `batch` makes tensors, the targets as `"labels"`. It may draw from torch, NumPy and `random`: a resumed run draws the same.
# - `example` is one sample of the largest size, for the plan.
#
# Loss, metrics, baseline, confusion matrix and `predict` follow from these. Each can be overridden.

# %% tags=["task"]
"""The class of an image: pictures in a folder for each class, or in a table with their names."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from PIL import Image
from torch import nn

from trainbook import IN_FOLDERS, Supervised, labelled_pictures, option, picture


@dataclass(frozen=True)
class Settings:
    classes: tuple[str, ...] = option(("circle", "square", "triangle"), "The names of the classes.")
    table: str = option("", "The table that lists the images; empty: the one that has their names, if there is one.")
    target: str = option("", "Its column of the class; empty: the one beside the names.")
    size: int = option(0, "The height and width of images; 0: the encoder's, or 64.", minimum=0)
    width: int = option(16, "The channels of the first layer from scratch.", minimum=1)
    encoder: str = option("", "A published encoder; empty: one at hand; none: scratch.", path=True)
    flip: bool = option(True, "Whether training mirrors half of the images, as where left and right say nothing.")
    bad_input_limit: int = option(0, "Bad images that are left out; one more refuses the data.", minimum=0)


class Images(Supervised):
    Settings, sentinels, metrics = Settings, IN_FOLDERS, ("accuracy", "macro_f1")
    pictures = "pixel_values"  # what an encoder sees of a batch

    def model(self):
        if encoder := self.encoder():
            return self.with_head(encoder, len(self.names))
        width = [3, *(self.settings.width * 2**k for k in range(3))]
        blocks = []
        for a, b in pairwise(width):
            convolution = nn.Conv2d(a, b, 3, padding=1)
            blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)))
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width[-1], len(self.names))
        return nn.Sequential(*blocks, *head)

    def read(self, source):
        settings = self.settings
        return labelled_pictures(source, settings.classes, settings.table, settings.target)

    def example(self):
        return Image.new("RGB", (64, 64)), "a class"

    def batch(self, samples, training):
        scaled = [picture(image, self.side(64)) for image, _ in samples]
        x = torch.from_numpy(np.stack(scaled)).permute(0, 3, 1, 2) / 255
        flips = torch.rand(len(x), 1, 1, 1) < 0.5 * training * self.settings.flip
        x = torch.where(flips, x.flip(3), x)
        labels = torch.tensor([label for _, label in samples])
        return {"pixel_values": x, "labels": labels}


# %% [markdown]
# ## Parameters
# Empty or zero means the value of the settings. `OVERRIDES` takes any key of them, for example
# `{"training.epochs": 40, "workload.metric": "log_loss"}`.

# %% tags=["parameters"]
CONFIG: str = ""  # empty: the settings above
DATA_DIR: str = ""  # your folder; empty: that of the settings, or what is mounted, otherwise the digits
OUTPUT_DIR: str = ""  # empty: the platform's
SMOKE_STEPS: int = 0
SMOKE_ONLY: bool = False  # True: stop after the smoke test, before anything is trained
MAX_STEPS: int = 0
SESSION_MINUTES: float = 0  # 0: the platform's limit
OVERRIDES: dict = {}
RESUME_FROM: str = ""  # empty: the newest checkpoint in the output folder or among the inputs

# %%
import tempfile
from pathlib import Path

from IPython.display import display

from lib.machine import memory
from trainbook import doctor, launch
from trainbook.launch import resume, smoke
from trainbook.notebook import widgets
from trainbook.outputs import packing
from workloads.competition import mounted

PROJECT = Path(tempfile.mkdtemp(prefix="your-model-"))  # of this session; the run and its archive keep what they need
DATA_DIR = mounted.data_dir(DATA_DIR, SETTINGS, PROJECT)
SETTINGS = SETTINGS or mounted.settings(DATA_DIR, MY_MODEL)
OVERRIDES = {"run.on_change": "new", **OVERRIDES}  # an edit of model, settings or data is a run of its own: my-2, my-3
notebook.save_cells(SETTINGS, PROJECT / "configs" / "my.yaml")
runs = notebook.configure_queue("my", PROJECT, globals())
config = runs[0].config  # of the only run, or of the first fold or seed

# %% shared: gpu-run

# %% shared: data

# %% shared: prepare

# %% [markdown]
# Where the samples are images, some of the training as the model gets them:

# %%
from trainbook.notebook import looks

if drawn := looks.batch(run):
    display(notebook.picture(drawn))

# %% shared: memory-run

# %% shared: smoke-run

# %% shared: resume-run

# %% shared: full-run

# %% shared: metrics-run

# %% [markdown]
# ## Evaluation beside the baselines
# The best weights on the test data, which training never saw, with a row for each class. A score means something only
# beside that of the strongest baseline on the same data, a simple method or a constant.

# %% shared: compare

# %%
confusion = run.folder / "plots" / "confusion.png"
if summary.reason == "completed" and confusion.is_file():
    display(notebook.picture(confusion))

# %% [markdown]
# The twelve test images to whose class it gave the least probability:

# %%
if summary.reason == "completed" and (drawn := looks.worst(run)):
    display(notebook.picture(drawn))

# %% [markdown]
# All runs of this notebook, each with what was edited:

# %%
notebook.show(notebook.runs(run))

# %% [markdown]
# ## Folds and seeds
# With `folds: 5` in the settings, the run above is the first of five. Here the others follow, one on each card, and all of
# them answer together: `oof.csv` has what each sample was given by the run that did not train on it. The session may end
# at any point; the next one continues with what is left.

# %%
if len(runs) > 1 and summary.reason == "completed":
    notebook.finish_queue(runs)

# %% [markdown]
# ## The submission
# A competition's run predicts the test by its best weights, and writes `submission.csv` in the form of the sample, where
# Kaggle looks for it. Columns, ids, order and cells were checked against the sample. The score to expect is that of the
# test part above, with its interval. Folds and seeds did the same together, above.

# %%
if len(runs) == 1 and summary.reason == "completed":
    notebook.show(looks.handed_in(run))

# %% [markdown]
# ## New data
# The best weights predict other data without targets. With another sample submission, its form is filled. Its ids are
# names of files, with or without their ending, or values of a column of the new data. Its columns are filled by their
# names: a class, or a probability for each.

# %%
NEW_DATA = ""  # a folder, a file or a mounted input; empty: none
SAMPLE = ""  # a sample_submission.csv; empty: none
ID_COLUMN = ""  # the column of the new data with the sample's ids; empty: the one of the same name, or with all ids
TTA = False  # True: each answer is the mean over the image and its mirror image
if NEW_DATA and len(runs) > 1:
    notebook.show(looks.predict_together(runs, NEW_DATA, SAMPLE, TTA, ID_COLUMN))
elif NEW_DATA and summary.reason == "completed":
    notebook.show(looks.predict(run, NEW_DATA, SAMPLE, TTA, ID_COLUMN))

# %% shared: packaging

# %% [markdown]
# ## Troubleshooting
#
# | what you see | what to do |
# |---|---|
# | "No GPU" | Settings > Accelerator > GPU T4 x2, then run again. The quota is 30 GPU hours a week. |
# | "Nothing is mounted", but you mounted data | Set `DATA_DIR` to its slug (`owner/name`). Files of other forms need `sentinels` in the class. |
# | "workload.target is empty" | The files do not tell it. Copy the printed block into `SETTINGS`, and name the column. |
# | "No submission was written" | Name `sample` and `test` in the block. |
# | the contract check refuses something | The sentence names the method and what to change. Change the class, run its cell, and run all again. |
# | "Memory ran out at step ..." | Do nothing: the step was repeated in smaller micro-batches. To avoid that next time, set `training.micro_batch` to the number in the message. |
# | stopped with reason `deadline` | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |
# | with `folds`: "my-fold0 is a run of another configuration" | A queue keeps its names. Write `run: {name: my2}` into the settings; the old runs stay. |
# | "my is a run of another configuration" | Something was edited since, and is trained as a run of its own. To get the earlier run back, restore the values that the line names. |

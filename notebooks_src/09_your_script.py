# ---
# trainbook:
#   title: "Trainbook 09: your own script"
#   gpu: true
#   internet: false
# ---

# %% [markdown]
# # Your own script
#
# You have a training script, and keep it as it is. This notebook starts its command and finishes it over as many sessions as it
# takes. Without your repository it runs a small one, of three files, that learns handwritten digits.
#
# Press **Run all** and this notebook will:
#
# 1. write the small repository, or copy yours;
# 2. run its command in a session of 75 seconds, at whose end it is stopped in time, and keep its checkpoint, verified;
# 3. run it again: it resumes from that checkpoint and completes;
# 4. run it for two seeds at once, one on each GPU;
# 5. leave plots, tables and one archive, `outputs.tar.gz`.
#
# In a real session nothing is stopped so soon: the command runs until the session ends. Run the notebook again with this
# run's output as an input (**Add Input > Your Work**), and it continues. On Kaggle choose
# **Settings > Accelerator > GPU T4 x2** first.

# %% shared: library

# %% shared: dependencies

# %%
from trainbook import dependencies

print(dependencies.ensure(dependencies.with_own(["sklearn"])))

# %% [markdown]
# ## Parameters
# Your repository: upload its folder as a data set (**Create > New Dataset**), add it with **Add Input**, and write its name here.

# %% tags=["parameters"]
REPOSITORY: str = ""  # yours: a mounted data set (owner/name) or a folder; empty: the small one below
EPOCHS: int = 100  # of the small one
FIRST_MINUTES: float = 1.25  # the session that is cut, of which 45 s are kept for saving; 0: none
SESSION_MINUTES: float = 0  # of the run behind it; 0: the platform's limit

# %% [markdown]
# ## The repository
# Three files as people write them: data, a network, a script. The script knows nothing of Trainbook. It saves after each epoch and
# resumes with `--resume FILE`. An epoch takes at least 0.3 s, so that there is something to cut.

# %%
import shutil
import tempfile
from pathlib import Path

PROJECT = Path(tempfile.mkdtemp(prefix="your-script-"))
DATA = '''
import torch
from sklearn.datasets import load_digits


def digits():
    """Returns pixels and classes for training and for validation."""
    pixels, classes = load_digits(return_X_y=True)
    x = torch.tensor(pixels, dtype=torch.float32) / 16
    y = torch.tensor(classes)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order[300:]], y[order[300:]], x[order[:300]], y[order[:300]]
'''
MODEL = '''
from torch import nn


def network():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
'''
TRAIN = '''
import argparse
import os
import time

import torch
from data import digits
from model import network
from torch.nn.functional import cross_entropy

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", default="checkpoints")
parser.add_argument("--resume", default="")
options = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(options.seed)
x, y, x_val, y_val = (part.to(device) for part in digits())
net = network().to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
begin = 0
if options.resume:
    state = torch.load(options.resume, map_location=device)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["epoch"]
    print(f"resumed from {options.resume} after epoch {begin}")

os.makedirs(options.out, exist_ok=True)
for epoch in range(begin + 1, options.epochs + 1):
    net.train()
    losses = []
    for rows in torch.randperm(len(x), device=device).split(64):
        loss = cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        accuracy = (net(x_val).argmax(1) == y_val).float().mean().item()
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, f"{options.out}/last.pt")
    print(f"epoch={epoch} loss={sum(losses) / len(losses):.4f} val_accuracy={accuracy:.4f}", flush=True)
    time.sleep(0.3)
print(f"final accuracy {accuracy:.4f}")
'''
if REPOSITORY:
    from lib.machine import inputs, platform

    shutil.copytree(inputs.find_input(REPOSITORY, platform.detect()), PROJECT, dirs_exist_ok=True)
else:
    for name, text in {"data.py": DATA, "model.py": MODEL, "train.py": TRAIN}.items():
        (PROJECT / name).write_text(text.lstrip(), "utf-8")
print("The repository:", ", ".join(sorted(path.name for path in PROJECT.iterdir())))

# %% [markdown]
# ## Its command
# What a shell would start, and where its checkpoints lie. `{newest}` is the newest checkpoint that opens; while there is none, the
# arguments of `resume` are left out. Each pattern of `metrics` takes a figure from the output. For your repository, write its own
# command here. A shell takes the same file: `trainbook run digits.yaml`.

# %%
SETTINGS = f"""
command: [python, train.py, --epochs, "{EPOCHS}"]
keep: checkpoints
resume: --resume {{newest}}
done: final accuracy
metrics: ['epoch=(\\d+)', 'loss=(\\S+)', 'val_accuracy=(\\S+)']
session: {{margin_seconds: 0}}
"""
settings = PROJECT / "digits.yaml"
settings.write_text(SETTINGS, "utf-8")
print(f"The command and its settings are in {settings.name}.")

# %% [markdown]
# ## A session that is cut
# The command is asked to end in time for a save: this is what it shows before twelve hours are over. This cell is left out where
# the repository is yours.

# %%
from trainbook.run import notebook

if FIRST_MINUTES and not REPOSITORY:
    first = notebook.run(settings, folder=PROJECT, overrides={"session.minutes": FIRST_MINUTES})

# %% [markdown]
# ## The next session
# The same command. It resumes where the other one saved, and goes on until it is completed or the session ends. The dashed line in
# the plot is the beginning of the second session. Interrupting this cell once asks the command to end; run it again to continue.

# %%
summary = notebook.run(settings, folder=PROJECT, overrides={"session.minutes": SESSION_MINUTES})

# %% [markdown]
# ## Two seeds at once, one a GPU
# `two_cards: each` starts the command once for each set of arguments: folds, seeds, sizes. Each is a run of its own, which sees
# one GPU alone. Without a GPU, two processes share the CPU. `torchrun: 2` would start one command over both cards instead.

# %%
SEEDS = """
command: [python, train.py, --epochs, "10", --out, "seeds/{set}"]
two_cards: each
sets: [--seed 0, --seed 1]
keep: seeds/{set}
resume: --resume {newest}
metrics: ['epoch=(\\d+)', 'loss=(\\S+)', 'val_accuracy=(\\S+)']
"""
if not REPOSITORY:
    (PROJECT / "seeds.yaml").write_text(SEEDS, "utf-8")
    both = notebook.run(PROJECT / "seeds.yaml", folder=PROJECT)

# %% [markdown]
# ## What is left
# The archive has figures, output and summary of each run. The checkpoints lie beside it, as verified copies.

# %%
from lib.machine import platform
from trainbook.outputs import packing

notebook.show(packing.table(platform.output_dir("")))

# %% [markdown]
# ## Troubleshooting
#
# | what you see | what to do |
# |---|---|
# | "No GPU" | Settings > Accelerator > GPU T4 x2, then run again. The quota is 30 GPU hours a week. |
# | stopped with reason `deadline` | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |
# | `failed` in the table | The last line of the command's output is below it. Correct the command, and run all again. |
# | "ended with exit code 0 and without ..." | The text of `done` was not printed: the command stopped itself. Run it again, or correct `done`. |
# | "There is no input" | Add the data with Add Input, and set `REPOSITORY` to its name (`owner/name`). |

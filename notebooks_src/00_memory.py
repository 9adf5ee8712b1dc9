# ---
# trainbook:
#   title: "Trainbook 00: memory planned on a laptop"
#   tasks: [graphmer, glacier, legal]
#   configs: [graphmer, graphmer_small, glacier_pretrain, glacier_pretrain_small, glacier_finetune, glacier_finetune_small, legal, legal_small]
#   carry: planning
#   gpu: false
#   internet: false
# ---

# %% [markdown]
# # Will it fit? Memory, time and quota of a training run, before it runs
#
# You have a laptop without a GPU, and a run in mind for another card: Kaggle's two T4s, a friend's 8 GB card, an A100 by the
# hour. Press **Run all**, and this notebook computes
#
# 1. whether the run fits, and what takes the memory;
# 2. the best split of the effective batch (micro-batch, accumulation, recomputed layers);
# 3. how long it takes, and how much of a week's quota;
# 4. what to write into the training notebook.
#
# It trains and downloads nothing, needs no GPU and spends no quota. It follows the *real* training step (model, loss, mixed
# precision, recomputation, backward pass, clipping, optimizer) tensor by tensor on PyTorch's `meta` device, which computes
# shapes and no values, through a simulation of the card's memory allocator. That takes seconds.

# %% shared: library

# %% [markdown]
# ## Dependencies
# PyTorch for the CPU is enough.

# %% shared: ensure

# %% [markdown]
# ## Parameters
# The panel's first choice. In a saved version, where nobody can press buttons, it is the only one. `OVERRIDES` takes any key
# of the configuration, for example `{"training.effective_batch": 128, "workload.model.layers": 6}`.

# %% tags=["parameters"]
CONFIG: str = "graphmer"  # a file in configs, without .yaml
CARD: str = ""  # empty: this machine's GPU, or else t4; a name as below, or your own, "8 GiB, capability 8.6"
CARDS: int = 0  # 0: as many as a session has; Kaggle gives two T4s
BESIDE: list = ["t4", "rtx3050", "l4"]  # cards that are compared at the end
OVERRIDES: dict = {}
OUTPUT_DIR: str = ""  # where "Use this plan" writes its file; empty: the platform's

# %% [markdown]
# ## This machine
# The machine that this notebook runs on. It needs no GPU.

# %%
from lib import planner
from lib.report import findings
from trainbook import doctor, notebook
from trainbook.notebook import panel

notebook.show(findings.table(doctor.examine()))

# %% [markdown]
# ## The panel
# Choose, and the answer follows in a few seconds. The bar is the memory of **one** card at the peak of a training step. A
# plan stays left of the dashed line, because the last 8 % are for what no prediction sees.
#
# - **Effective batch**: the samples of an optimizer step. It changes the result, so the plan never changes it.
# - **Micro-batch**: the samples that a card computes at once. Gradients of the micro-batches are accumulated.
# - **Recomputed**: layers whose activations are dropped and computed again in the backward pass. They need less memory and
#   up to a third more arithmetic; the plan recomputes as few as it can.
# - **Precision**: *auto* is bf16 if the card has units for it, else fp16.
#
# *Where it goes*, below the answer, has what each layer takes.
#
# **Use this plan** prints the line for the Parameters of the training notebook, and writes it to a file. A training notebook
# that runs beside this one reads that file and prints that it does.

# %%
panel.show(HOME / "configs", CONFIG, CARD, CARDS, OVERRIDES, OUTPUT_DIR)

# %% [markdown]
# ## The same run on several cards

# %%
notebook.show(panel.side_by_side(HOME / "configs" / f"{CONFIG}.yaml", OVERRIDES, BESIDE))

# %% [markdown]
# | name | card | GiB that PyTorch sees |
# |---|---|---|
# | `t4` | T4: Kaggle has two, Colab one | 14.6 |
# | `p100` | P100, which Kaggle has retired | 15.9 |
# | `v100-16`, `v100-32` | V100 | 15.8, 31.7 |
# | `rtx2080ti` | RTX 2080 Ti | 10.6 |
# | `rtx3050`, `rtx3060`, `rtx3080`, `rtx3090` | RTX 3050 8 GB to RTX 3090 | 7.6, 11.6, 9.6, 23.6 |
# | `rtx4070`, `rtx4090` | RTX 4070, RTX 4090 | 11.6, 23.5 |
# | `a10`, `a6000` | A10, RTX A6000 | 22, 47.4 |
# | `l4`, `l40s` | L4, L40S | 22, 44.4 |
# | `a100-40`, `a100-80` | A100 | 39, 79 |
# | `h100-pcie`, `h100`, `h200` | H100, H200 | 79.1, 79.1, 139 |
#
# Any other card is its memory, capability and rates: `"24 GiB, capability 8.6, 71 TFLOP/s, 936 GB/s"`. Rates that you
# leave out are taken from the nearest card above, and the plan says so.
#
# ## Your own model
# `predict` takes any model and any step, without a configuration. Make the model and the batch as you would on a GPU, and
# return the loss. Replace this cell's model with yours.

# %%
import torch
from torch import nn


class Classifier(nn.Module):
    """A small convolutional network, as an example."""

    def __init__(self, width: int = 128, classes: int = 10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.body = nn.Sequential(*[nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()) for _ in range(8)])
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(images)).mean((2, 3)))


def step(model: nn.Module) -> torch.Tensor:
    images = torch.randn(64, 3, 224, 224, device="cuda")
    labels = torch.randint(10, (64,), device="cuda")
    return nn.functional.cross_entropy(model(images), labels)


notebook.show(str(planner.predict(Classifier, step, card=CARD or "t4", precision="fp16")))

# %% [markdown]
# ## How far to trust it
# - **Memory** is exact for what PyTorch allocates in the traced step. The answer lists what a trace cannot see as "Not seen".
#   Memory for the CUDA context and late kernels is set aside, and the 8 % above the line are for the rest.
# - **Time** is computed from the card's arithmetic and bandwidth, between two bounds. The smoke test of a training notebook
#   measures time and memory within a minute.
#
# ## Troubleshooting
#
# | what you see | what to do |
# |---|---|
# | the controls do nothing, or are missing | The notebook has no kernel: run all. |
# | "There is no card ..." | Take a name from the table, or write memory and capability: `8 GiB, capability 8.6`. |
# | "No micro-batch of ... fits" | Take one of the cards that the message names, or make the sample or the model smaller. |
# | "cannot be dealt into ... equal parts" | Take an effective batch that is a multiple of the number of cards. |
# | the training notebook prints that a plan "is ignored" | The message says why: the plan was made for another configuration, or its file was edited. |

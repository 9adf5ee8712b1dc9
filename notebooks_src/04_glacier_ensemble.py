# ---
# trainbook:
#   title: "Trainbook 04: Glacier ensemble"
#   tasks: [glacier]
#   configs: [glacier_ensemble, glacier_ensemble_small, glacier_pretrain, glacier_pretrain_small, glacier_finetune, glacier_finetune_small]
#   gpu: true
#   internet: false
# ---

# %% [markdown]
# # Glaciers, third of three: ensemble and maps
#
# Press **Run all** and this notebook will:
#
# 1. train three more networks that differ in their seed, from the weights of *02 pretraining*;
# 2. let them vote, together with the five folds of *03 fine-tuning*, each over all flips and turns of a tile;
# 3. print the ensemble's metrics on the test that none of them saw, beside its members' and the baseline's;
# 4. write a mask for each scene as a GeoTIFF with the scene's own georeference;
# 5. leave plots, masks, tables and one archive, `outputs.tar.gz`.
#
# Add the outputs of *02 pretraining* and *03 fine-tuning* as inputs. Without the first a short pretraining comes first, and
# without the second the seeds vote alone. The notebook says which it found.

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
# `{"queue.seeds": [1, 2]}`.

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
from lib.launch import ensemble, queue
from lib.machine import memory
from lib.notebook import widgets
from lib.report import outputs

runs = notebook.configure_queue("glacier_ensemble", HOME, globals())
print("The queue:", ", ".join(entry.name for entry in runs))

# %% [markdown]
# ## GPU check
# What the machine has, each finding with a verdict and what to do. What is bad would end the run later, so it stops here.

# %%
doctor.admit(runs[-1].config)

# %% [markdown]
# ## Data
# The scenes and the test are those of the fine-tuning, cut into tiles once; a file that cannot be used is named.

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
# ## Ensemble beside its members and the trivial baseline
# The members' probabilities are averaged over models, flips and turns. The test is the same for all folds and seeds.

# %%
members, voted = queue.members(runs, folds_of="glacier_finetune"), run.output_dir / runs[-1].kind
if members:
    summary, text = ensemble.vote(members, voted)
    print(text, notebook.compare(summary), sep="\n")
    display(*(Image(filename=str(voted / "plots" / f"{name}.png")) for name in ("predictions", "confusion")))

# %% [markdown]
# ## Maps
# A mask for each scene, in the mask's own codes. The command line does the same for any folder of bands:
# `python -m lib predict outputs.tar.gz FOLDER masks`.

# %%
if members and run.config.workload.download:
    print("The scenes of downloaded archives are deleted once they are cut: name a folder of bands in `lib predict`.")
elif members:
    task, models = ensemble.load_members(members)
    masks = task.predict(models, run.task.data.root, voted / "masks")
    print(f"{len(masks)} masks are in {voted / 'masks'}.")

# %% [markdown]
# ## The entry of GlacierHack
# The competition's grader calls one function, whose spelling this is. It is written to `maskgeration.py`, to hand in beside
# `lib` and `outputs.tar.gz`. A grader was seen to give the place of the models as the second argument, and then nothing is
# written; otherwise they come from `TRAINBOOK_ARCHIVE`, or from `outputs.tar.gz` in the working folder. A tile's id is the
# number in `img001`, the two in `02_07`, or its whole name.

# %%
import inspect


def maskgeration(imagepath: dict, out_dir: str) -> dict:
    """Returns masks (height, width) by tile id, out of folders by band: {"Band1": folder, ...}."""
    import os
    import re
    from pathlib import Path

    from lib.launch import ensemble

    place, archive = Path(out_dir), Path(os.environ.get("TRAINBOOK_ARCHIVE") or "outputs.tar.gz")
    holds_models = place.is_file() or any(place.glob("**/config.yaml"))
    task, models = ensemble.load(place if holds_models else archive)
    folders = {band: Path(folder) for band, folder in imagepath.items()}
    masks = task.predict(models, folders, None if holds_models else place)
    ids = {name: re.search(r"img(\d+)", name) or re.search(r"(\d{2}_\d{2})", name) for name in masks}
    return {ids[name][1] if ids[name] else name: mask for name, mask in masks.items()}


if members:
    (voted / "maskgeration.py").write_text(inspect.getsource(maskgeration))
    outputs.package(run.output_dir)

# %% [markdown]
# ## Packaging
# The last line is the archive to download: on Kaggle in the **Output** tab after *Save Version*.

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
# | "the seeds vote alone" | Add the output of *03 fine-tuning* as an input. |
# | "cannot vote together" | Bands or classes of the members differ: fold and seed runs must share `workload.source`. |
# | "The session ends" | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |

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
# 3. print the ensemble's metrics on the test part, which none of them saw, beside its members' and the baseline's;
# 4. write a mask for each scene as a GeoTIFF with the scene's own georeference;
# 5. leave plots, masks, tables and one archive, `outputs.tar.gz`.
#
# Add the outputs of *02 pretraining* and *03 fine-tuning* as inputs. Without the first, the notebook begins with a short
# pretraining; without the second, the seeds vote alone. It prints which inputs it uses.

# %% shared: library

# %% shared: dependencies

# %% shared: ensure-glacier

# %% [markdown]
# ## Parameters
# Empty or zero means the configuration file's value. `OVERRIDES` takes any key of that file, for example
# `{"queue.seeds": [1, 2]}`.

# %% shared: parameters-glacier

# %%
from lib.machine import memory
from trainbook import doctor, launch, notebook
from trainbook.launch import ensemble, queue
from trainbook.notebook import widgets
from trainbook.outputs import packing
from workloads.glacier import voting

runs = notebook.configure_queue("glacier_ensemble", HOME, globals())
print("The queue:", ", ".join(entry.name for entry in runs))

# %% shared: gpu-queue

# %% [markdown]
# ## Data
# The scenes and the test part are those of the fine-tuning. They are cut into tiles once; each file that cannot be used is
# named.

# %% shared: prepare-queue

# %% shared: memory-queue

# %% shared: smoke-queue

# %% shared: resume-queue

# %% shared: full-queue

# %% shared: metrics-queue

# %% [markdown]
# ## Ensemble beside its members and the baselines
# The members' probabilities are averaged over models, flips and turns. All folds and seeds have the same test part. The first
# table has each member alone with the same views, so the last row's lead is what voting brings.

# %%
members, voted = voting.members(runs, folds_of="glacier_finetune"), run.output_dir / runs[-1].kind
if members:
    summary, text = voting.vote(members, voted)
    notebook.show(f"{text}\n\n{notebook.compare(summary)}")
    drawn = [voted / "plots" / f"{name}.png" for name in ("worst", "confusion")]
    display(*(notebook.picture(path) for path in drawn if path.is_file()))

# %% [markdown]
# ## Maps
# A mask for each scene, in the mask's own codes. The command line makes masks for any folder of bands:
# `trainbook predict outputs.tar.gz FOLDER masks`.

# %%
if members and run.task.data.archives:
    print("The scenes of archives are deleted once they are cut: name a folder of bands in `trainbook predict`.")
elif members:
    task, models = ensemble.load_members(members)
    masks = task.predict(models, run.task.data.root, voted / "masks")
    print(f"{len(masks)} masks are in {voted / 'masks'}.")

# %% [markdown]
# ## The entry of GlacierHack
# The competition's grader calls one function, which it spells like this. The cell writes it to `maskgeration.py`: submit that
# file with `lib`, `workloads` and `outputs.tar.gz`. One grader passes the folder of the models as the second argument, and then
# the function writes nothing. Otherwise the models come from `TRAINBOOK_ARCHIVE`, or from `outputs.tar.gz` in the working
# folder. A tile's id is the number in `img001`, the pair in `02_07`, or its whole name.

# %%
import inspect


def maskgeration(imagepath: dict, out_dir: str) -> dict:
    """Returns masks (height, width) by tile id, out of folders by band: {"Band1": folder, ...}."""
    import os
    import re
    import tempfile
    from pathlib import Path

    import numpy as np
    import rasterio

    from trainbook.launch import ensemble
    from workloads.glacier.maps import coding

    place, archive = Path(out_dir), Path(os.environ.get("TRAINBOOK_ARCHIVE") or "outputs.tar.gz")
    holds_models = place.is_file() or any(place.glob("**/config.yaml"))
    task, models = ensemble.load(place if holds_models else archive)
    source, masks = task.settings.source, {}
    with tempfile.TemporaryDirectory() as aside:
        scenes, maps = Path(aside, "scenes"), Path(aside, "maps") if holds_models else place
        scenes.mkdir()
        for band, folder in imagepath.items():
            (scenes / band).symlink_to(Path(folder).absolute())
        for name, path in task.predict(models, scenes, maps).items():
            with rasterio.open(path) as file:
                mask = file.read(1)
            number = re.search(r"img(\d+)", name) or re.search(r"(\d{2}_\d{2})", name)
            is_unknown = mask == coding(source.codes)[1]  # who grades takes the classes' codes alone
            masks[number[1] if number else name] = np.where(is_unknown, source.codes[0], mask).astype(mask.dtype)
    return masks


if members:
    (voted / "maskgeration.py").write_text(inspect.getsource(maskgeration), "utf-8")
    packing.package(run.output_dir)

# %% [markdown]
# ## Packaging
# The last line is the archive to download: on Kaggle in the **Output** tab after *Save Version*.

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
# | "the seeds vote alone" | Add the output of *03 fine-tuning* as an input. |
# | "cannot vote together" | Bands or classes of the members differ: fold and seed runs must share `workload.source`. |
# | "The session ends" | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |

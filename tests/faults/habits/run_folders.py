"""A folder for each start, model and optimizer in two files, sixteen pictures an epoch.

python run_folders.py resume=RUN
"""

import glob
import os
import pickle
import sys
import time

import counting
from counting import STEPS, as_pickle, begin, take, write

counting.SECONDS = 0.2
step = 0
if len(sys.argv) > 1:
    before = sys.argv[1].removeprefix("resume=")
    models = sorted(glob.glob(f"{before}/weights/model_*.pt"))
    optimizers = sorted(glob.glob(f"{before}/weights/optim_*.pt"))
    if models and optimizers and models[-1][-7:] == optimizers[-1][-7:]:
        with open(models[-1], "rb") as file:
            step = pickle.load(file)["step"]
run = f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 1000:03d}-unet"
os.makedirs(f"{run}/weights")
with open(f"{run}/config.yaml", "w") as file:
    file.write("epochs: 8\n")
begin(step)
while step < STEPS:
    step += 1
    take(step)
    if step % 5:
        continue
    write(f"{run}/weights/model_{step:04d}.pt", as_pickle(step))
    os.makedirs(f"{run}/samples/{step:04d}")
    for number in range(16):
        with open(f"{run}/samples/{step:04d}/{number:03d}.npy", "wb") as file:
            file.write(bytes(100))
    write(f"{run}/weights/optim_{step:04d}.pt", as_pickle(step))
    for kind in ("model", "optim"):
        for old in sorted(glob.glob(f"{run}/weights/{kind}_*.pt"))[:-3]:
            os.remove(old)
print("IoU 0.79")

"""checkpoint-N/ of three files, the newest two and the best stay.  python folders.py --resume_from_checkpoint FOLDER"""

import argparse
import json
import os
import pickle
import shutil

import counting
from counting import STEPS, as_pickle, begin, save_zip, take, write

counting.SECONDS = 0.2
parser = argparse.ArgumentParser()
parser.add_argument("--resume_from_checkpoint", default="")
options = parser.parse_args()
step, best = 0, ""
if folder := options.resume_from_checkpoint:
    with open(f"{folder}/model.pt", "rb") as file:
        step = pickle.load(file)["step"]
    with open(f"{folder}/trainer_state.json") as file:
        state = json.load(file)
    best = state["best_model_checkpoint"]
    if state["step"] != step or not os.path.exists(f"{folder}/optimizer.pt"):
        raise SystemExit("The files of the checkpoint do not belong together.")
begin(step)
while step < STEPS:
    step += 1
    take(step)
    if step % 5:
        continue
    folder = f"out/checkpoint-{step}"
    os.makedirs(folder, exist_ok=True)
    write(f"{folder}/model.pt", as_pickle(step))
    save_zip(f"{folder}/optimizer.pt", step)
    best = best or folder
    text = json.dumps({"step": step, "best_model_checkpoint": best})
    write(f"{folder}/trainer_state.json", text.encode())
    found = sorted(os.listdir("out"), key=lambda name: int(name.split("-")[1]))
    for name in found[:-2]:
        if f"out/{name}" != best:
            shutil.rmtree(f"out/{name}")
if not os.path.exists(best):
    raise SystemExit(f"The best checkpoint {best} is gone.")
print("eval_accuracy = 0.92")

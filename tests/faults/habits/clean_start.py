"""Reads what it goes on from, then deletes its folder: "start clean".

python clean_start.py --warm results/model.pth
"""

import os
import shutil
import sys

from counting import STEPS, begin, load_zip, save_zip, take

step = load_zip(sys.argv[2]) if sys.argv[1:2] == ["--warm"] else 0
if os.path.exists("results"):
    shutil.rmtree("results")
os.makedirs("results")
begin(step)
while step < STEPS:
    step += 1
    take(step)
    if step % 4 == 0:
        save_zip("results/model.pth", step)
    with open("results/history.csv", "a") as file:
        file.write(f"{step},0.5\n")
print("test MSE 0.11")

"""last.pt in place at each epoch, best.pt when it is better.  python in_place.py --resume checkpoints/last.pt"""

import argparse
import os
import pickle

from counting import STEPS, as_pickle, begin, take, write

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
options = parser.parse_args()
os.makedirs("checkpoints", exist_ok=True)
step = 0
if options.resume:
    with open(options.resume, "rb") as file:
        step = pickle.load(file)["step"]
begin(step)
while step < STEPS:
    step += 1
    take(step)
    if step % 5 == 0:
        write("checkpoints/last.pt", as_pickle(step))
    if step % 10 == 0:
        write("checkpoints/best.pt", as_pickle(step))
print("final accuracy 0.99")

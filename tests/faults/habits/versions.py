"""last.ckpt, or last-v1.ckpt where a last.ckpt lies, and the best two by score.  python versions.py --ckpt_path FILE"""

import argparse
import os

from counting import STEPS, begin, load_zip, save_zip, take

parser = argparse.ArgumentParser()
parser.add_argument("--ckpt_path", default=None)
options = parser.parse_args()
step = load_zip(options.ckpt_path) if options.ckpt_path else 0
os.makedirs("ckpts", exist_ok=True)
last, version = "ckpts/last.ckpt", 0
while os.path.exists(last):
    version += 1
    last = f"ckpts/last-v{version}.ckpt"
best = []
begin(step)
while step < STEPS:
    step += 1
    take(step)
    if step % 5:
        continue
    epoch = step // 5
    path = f"ckpts/epoch={epoch:02d}-val_acc=0.{90 + 7 * epoch % 10}.ckpt"
    save_zip(path, step)
    best.append(path)
    for old in best[:-2]:
        os.remove(old)
    best = best[-2:]
    save_zip(last, step)
print("val_acc 0.97")

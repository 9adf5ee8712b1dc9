"""Saves on SIGTERM, slowly, and then exits with 0, as if it were done.  It finds its file by itself."""

import os
import signal
import sys

from counting import STEPS, begin, load_zip, save_zip, take

stop = False


def on_term(number, frame):
    global stop
    stop = True


signal.signal(signal.SIGTERM, on_term)
step = load_zip("drive/checkpoint.pt") if os.path.exists("drive/checkpoint.pt") else 0
os.makedirs("drive", exist_ok=True)
begin(step)
while step < STEPS:
    step += 1
    take(step)
    if stop or step % 10 == 0:
        save_zip("drive/checkpoint.pt", step)
    if stop:
        print("stopped, see you later")
        sys.exit(0)
print("test accuracy 0.98")

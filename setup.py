"""Puts lib, workloads and configs into the wheel as trainbook/home, so that no top-level `lib` is installed.

A build leaves nothing in the checkout: setuptools would take what an earlier one left there for a part of the next.
"""

import atexit
import shutil
import tempfile

from setuptools import find_namespace_packages, setup

FOLDERS = {f"trainbook.home.{folder}": folder for folder in ("lib", "workloads", "configs")}
inner = [
    f"{package}.{name}"
    for package, folder in FOLDERS.items()
    for name in find_namespace_packages(folder)
]
inner += [f"trainbook.{name}" for name in find_namespace_packages("trainbook")]
scratch = tempfile.mkdtemp(prefix="trainbook-build-")
atexit.register(shutil.rmtree, scratch, ignore_errors=True)

setup(
    packages=["trainbook", *FOLDERS, *(name for name in inner if "__pycache__" not in name)],
    package_dir={"trainbook": "trainbook", **FOLDERS},
    package_data={"": ["*"]},
    options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
)

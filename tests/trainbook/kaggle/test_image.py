"""The table of Kaggle's image."""

import importlib.util

import pytest

from trainbook.kaggle import image


@pytest.mark.parametrize("name", image.PACKAGES)
def test_every_package_of_the_image_has_a_source_and_a_month(name):
    package = image.PACKAGES[name]
    assert package.source and package.checked.startswith("20") and len(package.checked) == 7


def test_packages_have_the_names_that_are_imported():
    """pip's names (pyyaml, pillow, scikit-learn) would never match an import."""
    assert not {"pyyaml", "pillow", "scikit-learn", "nvidia-ml-py"} & image.PACKAGES.keys()
    assert all(importlib.util.find_spec(name) for name in ("torch", "numpy", "yaml"))


def test_what_the_image_lacks_is_told_from_what_has_no_noted_version():
    assert image.PACKAGES["bitsandbytes"].version is None and image.PACKAGES["yaml"].version == ""

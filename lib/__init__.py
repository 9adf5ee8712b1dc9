"""Trainbook's library: what the notebooks import."""

__version__ = "0.1.0"

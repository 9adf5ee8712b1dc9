"""Predicts memory and time of a training run for a named card, on a machine without one.

`plan` plans the run of a configuration in a child process (`make` in this one); `predict` takes any model and step,
`predict_inference` any forward pass.
"""

from lib.planner.card import FITS, find_card
from lib.planner.log import Prediction
from lib.planner.process import plan
from lib.planner.search import Plan, as_configured, make
from lib.planner.table import of_layers, of_plan, of_plans
from lib.planner.trace import predict, predict_inference

__all__ = [
    "FITS", "Plan", "Prediction", "as_configured", "find_card", "make", "of_layers", "of_plan",
    "of_plans", "plan", "predict", "predict_inference",
]  # fmt: skip

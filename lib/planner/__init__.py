"""Predicts memory and time of a training run, or of any model and step, for a card that this machine lacks."""

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

"""Memory and time of a training run, predicted for a named card on a machine without one.

`plan` is for the tasks of a configuration, `predict` for any model and step.
"""

from lib.planner.card import FITS
from lib.planner.prediction import Prediction, predict
from lib.planner.process import plan
from lib.planner.search import Plan
from lib.planner.table import of_plan, of_plans

__all__ = ["FITS", "Plan", "Prediction", "of_plan", "of_plans", "plan", "predict"]

"""Memory and time of a training run, predicted for a named card on a machine without one.

`plan` is for the tasks of a configuration (`make` does it in this process), `predict` for any model and step.
"""

from lib.planner.card import FITS, find_card
from lib.planner.process import plan
from lib.planner.search import Plan, make
from lib.planner.table import of_plan, of_plans
from lib.planner.trace import Prediction, predict

__all__ = ["FITS", "Plan", "Prediction", "find_card", "make", "of_plan", "of_plans", "plan", "predict"]

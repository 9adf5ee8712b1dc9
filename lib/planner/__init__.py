"""Memory and time of a training run, predicted for a named card on a machine without one."""

from lib.planner.predict import Prediction, predict, predict_task

__all__ = ["Prediction", "predict", "predict_task"]

"""Experiment tracking: runs, metrics, files and model versions in MLflow, which only this package imports.

`writer.Tracking` never lets a failing store stop the work that it watches; `NoTracking` is the same without effect.
"""

from storage.tracking.off import NoTracking
from storage.tracking.places import default_uri, experiment_link, model_link, run_link
from storage.tracking.writer import Tracking

__all__ = ["NoTracking", "Tracking", "default_uri", "experiment_link", "model_link", "run_link"]

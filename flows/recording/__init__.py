"""What a run leaves in MLflow: runs of studies and stages, figures and tables, registered models."""

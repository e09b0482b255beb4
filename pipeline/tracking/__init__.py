"""What MLflow is told of the stages and of their comparison, and where results come from."""

"""Run the stages of a plan."""

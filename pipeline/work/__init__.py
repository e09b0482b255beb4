"""Run the tasks of a stage: in this process, or on Ray."""

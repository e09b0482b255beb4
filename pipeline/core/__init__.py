"""What every stage stands on: checked params, machine settings, places of artifacts, executors, the shell."""

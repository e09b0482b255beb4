"""The base of all stages: checked params, machine settings, places of artifacts, records."""

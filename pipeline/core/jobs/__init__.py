"""Ray jobs: calls of a function on a cluster of which this machine reaches the dashboard's port alone."""

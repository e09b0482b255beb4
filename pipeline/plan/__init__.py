"""The plan: every stage, what it reads, and whether its result is up to date."""

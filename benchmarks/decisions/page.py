"""The page of results/decisions."""

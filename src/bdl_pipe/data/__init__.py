"""Data sets: their sources (``catalog``, ``sources``), their preparation, and the data that a fit gets."""

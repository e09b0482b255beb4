"""Data sets: where rows come from (``catalog``, ``sources``), how they are prepared, and what a fit sees of them."""

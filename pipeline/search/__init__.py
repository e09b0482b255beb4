"""Searches by Ray Tune and studies over grids: trials on training rows, scored on validation rows."""

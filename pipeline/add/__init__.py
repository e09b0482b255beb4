"""Add a user's data to params.yaml."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path("params/data")  # ``add`` writes one overlay for each data set into this folder.

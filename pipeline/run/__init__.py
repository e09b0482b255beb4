"""Run the stages of a plan."""

from typing import Final

ONLY_TAKE: Final = "BDL_ONLY_TAKE"  # set when DVC may restore results from its run cache but must not run stages

"""Run the stages of a plan."""

from typing import Final

ONLY_TAKE: Final = "BDL_ONLY_TAKE"  # set where DVC may take results from its run cache, and must run no stage

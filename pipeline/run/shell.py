"""Run ``python -m stages.<kind> [KEY]``, as DVC does: one stage, in this process."""

import os
import sys
from collections.abc import Sequence
from typing import Final

ONLY_TAKE: Final = "BDL_ONLY_TAKE"  # set where DVC may take results from its run cache, and must run no stage


def main(kind: str, arguments: Sequence[str]) -> int:
    """Run one stage and return the exit code; a user's mistake is one line on stderr and 2."""
    key = arguments[0] if arguments else ""
    title = f"{kind} {key}".strip()
    if os.environ.get(ONLY_TAKE) and kind != "sources":
        print(f"{title}: is not in the run cache", file=sys.stderr)
        return 1
    from bdl_pipe.errors import UserError

    from ..core import signals
    from ..core.load import load
    from ..core.settings import Settings
    from ..plan import plan, sources
    from . import body

    signals.interruptible()
    try:
        params, settings = load(), Settings.read()
        if kind == "sources":
            sources.write(params)
        else:
            body.ensure(plan.one(kind, key, params), params, settings)
    except UserError as error:
        print(f"{title}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{title}: interrupted", file=sys.stderr)
        return 130
    return 0

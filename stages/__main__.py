"""Run one stage in this process, as DVC does: ``python -m stages KIND [KEY]``."""

import argparse
import os
import sys

from pipeline.core import threads
from pipeline.plan.code import BODIES
from pipeline.run import ONLY_TAKE


def main() -> int:
    """Run one stage and return the exit code; a user's mistake prints one line on stderr and returns 2."""
    parser = argparse.ArgumentParser("python -m stages", description="Run one stage, as DVC does.")
    parser.add_argument("kind", choices=["sources", *BODIES])
    parser.add_argument("key", nargs="?", default="", help="of params.yaml; sources and the report have none")
    asked = parser.parse_args()
    kind, key = asked.kind, asked.key
    title = f"{kind} {key}".strip()
    if os.environ.get(ONLY_TAKE) and kind != "sources":
        print(f"{title}: is not in the run cache", file=sys.stderr)
        return 1
    threads.limit()
    from bdl_pipe.errors import UserError
    from pipeline.core import signals, terminal
    from pipeline.core.load import load
    from pipeline.core.settings import Settings
    from pipeline.plan import plan, sources
    from pipeline.run import body

    signals.interruptible()
    terminal.replace_what_it_lacks()
    if "DVC_STAGE" in os.environ:  # DVC has started this process, and a DVC that is killed cannot end it.
        signals.end_with_parent()
    try:
        params, settings = load(), Settings.read()
        if kind == "sources":
            sources.write(params)
        else:
            body.ensure(plan.one(kind, key, params), params, settings)
        if kind == "report" and settings.tracking:
            from pipeline.run import pool
            from pipeline.stages import comparison

            stages = plan.plan(params)
            comparison.track(stages, params, settings, pool.stale(stages))
    except UserError as error:
        print(f"{title}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{title}: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

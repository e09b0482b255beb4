"""``python -m pipeline attach``: find the jobs that an earlier command of this clone has left on a cluster, and go on.

It runs the stages that asked for them, which find their jobs; what has ended meanwhile is fetched.
"""

import sys
from argparse import Namespace

from bdl_pipe.errors import UserError

from . import repro
from .core.jobs import client
from .core.settings import Settings


def main(args: Namespace) -> int:
    """Print the jobs, and run their stages; return 1 if a stage failed.

    Raises:
        UserError: RAY_ADDRESS is not that of a cluster that takes jobs, or nothing answers there.
    """
    url = Settings.read().jobs
    if not url:
        raise UserError("RAY_ADDRESS must be http://host:8265 of the cluster that has the jobs")
    client.preflight(url)
    stages = []
    for job, note in client.noted():
        at = "" if note["url"] == url else f" of {note['url']}"
        print(f"{note['title']}: {client.status(note['url'], job)} ({job}{at})", flush=True)
        if note["stage"]:
            stages.append(note["stage"])
        else:
            print(f"warning: {note['title']} goes on when its own command is run again", file=sys.stderr)
    if not stages:
        print("no stage of this project has left a job")
        return 0
    return repro.main(Namespace(targets=stages, jobs=max(args.jobs, len(stages))))

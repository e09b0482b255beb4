"""``python -m pipeline attach``: find the jobs that an earlier command of this clone has left on a cluster, and go on.

It runs the stages that asked for them, which find their jobs; what has ended meanwhile is fetched.
"""

import sys
from argparse import Namespace

from bdl_pipe.errors import UserError

from ..core.jobs import client
from ..core.jobs.dashboard import UNDER_WAY, preflight
from ..core.load import load
from ..core.settings import Settings
from ..plan import plan
from . import repro


def main(args: Namespace) -> int:
    """Print the jobs, and run their stages; return 1 if a stage failed.

    Raises:
        UserError: RAY_ADDRESS is not that of a cluster that takes jobs, or nothing answers there.
    """
    url = Settings.read().jobs
    if not url:
        raise UserError("RAY_ADDRESS must be http://host:8265 of the cluster that has the jobs")
    preflight(url)
    stages, known = dict[str, str](), plan.plan(load())
    for job, note in client.noted():
        at = "" if note["url"] == url else f" of {note['url']}"
        state = client.status(note["url"], job)
        print(f"{note['title']}: {state} ({job}{at})", flush=True)
        if at:
            _warn(f"{note['title']} goes on with RAY_ADDRESS={note['url']}")
        elif note["stage"] in known:
            stages[job] = note["stage"]
        elif state not in UNDER_WAY and (note["stage"] or state == "UNKNOWN"):
            client.forget(job)
        elif note["stage"]:
            _warn(f"{note['title']} is no stage of params.yaml any more; ray job stop {job} ends it")
        else:
            _warn(f"{note['title']} goes on when its own command is run again")
    if not stages:
        print("no stage of this project has left a job")
        return 0
    code = repro.main(Namespace(targets=[*stages.values()], jobs=max(args.jobs, len(stages))))
    for job, note in client.noted():  # what nobody has asked for: the stage's numbers or code have changed
        if job in stages:
            if client.status(url, job) in UNDER_WAY:
                _warn(f"{note['title']} has other work by now; ray job stop {job} ends the old")
            else:
                client.forget(job)
    return code


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)

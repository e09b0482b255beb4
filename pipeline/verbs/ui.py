"""``python -m pipeline ui``: MLflow's page on this project's store."""

import os
import subprocess
import sys
from argparse import Namespace
from typing import Final

from bdl_pipe.errors import UserError

from ..core.load import load
from ..core.object_store import hide
from ..core.settings import Settings
from ..stages import report
from ..tracking import comparison, experiments, summaries

SERVER: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes of jobs that nobody here asks for
}


def main(args: Namespace) -> int:
    """Serve until it is interrupted.

    Raises:
        UserError: params.yaml is wrong, there is no store, or MLflow is not installed.
    """
    experiment = report.compare(load())
    if experiment is None:
        why = "cannot be opened" if Settings.read().tracking else "is not used: BDL_TRACKING is off"
        raise UserError(f"the tracking store {hide(experiments.store_uri())} {why}")
    page = f"http://{args.host}:{args.port}/{comparison.link(experiment, summaries.ALL)}"
    print(f"the comparison: {page}\n(Ctrl-C ends the server)", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", experiments.store_uri()]
    command += ["--host", args.host, "--port", str(args.port), "--workers", "1"]
    return subprocess.run(command, env={**os.environ, **SERVER}, check=False).returncode

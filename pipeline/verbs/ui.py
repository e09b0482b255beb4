"""``python -m pipeline ui``: MLflow's page on this project's store."""

import os
import subprocess
import sys
from typing import Final

from bdl_pipe.errors import UserError

from .. import tracking
from ..core.load import load
from ..core.settings import Settings
from ..core.storage import hide
from ..stages import comparison

SERVER: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes of jobs that nobody here asks for
}


def ui(host: str, port: int) -> int:
    """Serve until it is interrupted.

    Raises:
        UserError: params.yaml is wrong, there is no store, or MLflow is not installed.
    """
    params = load()
    experiment = tracking.compare(lambda: comparison.of(params))
    if experiment is None:
        why = "cannot be opened" if Settings.read().tracking else "is not used: BDL_TRACKING is off"
        raise UserError(f"the tracking store {hide(tracking.store_uri())} {why}")
    page = f"http://{host}:{port}/{tracking.link(experiment, comparison.ALL)}"
    print(f"the comparison: {page}\n(Ctrl-C ends the server)", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking.store_uri()]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    return subprocess.run(command, env={**os.environ, **SERVER}, check=False).returncode

"""``python -m pipeline ui``: MLflow's page on this project's store."""

import os
import subprocess
import sys
from argparse import Namespace

from bdl_pipe.errors import UserError

from .rows import tracking


def main(args: Namespace) -> int:
    """Serves until it is interrupted.

    Raises:
        UserError: there is no store, or MLflow is not installed.
    """
    if tracking.initialise() is None:
        raise UserError(f"the tracking store {tracking.store_uri()} cannot be opened")
    print(f"tracking page: http://{args.host}:{args.port} (Ctrl-C ends it)", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking.store_uri()]
    command += ["--host", args.host, "--port", str(args.port), "--workers", "1"]
    return subprocess.run(command, env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}, check=False).returncode

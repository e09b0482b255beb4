"""Short waits and a probe with a limit for stores on S3; the tracking of runs is the last user of this module."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Final

from bdl_pipe.errors import UserError, brief

from .storage import has_userinfo, hide, is_secret, reason

__all__ = ["PATIENCE", "has_userinfo", "hide", "is_secret", "limited", "probe", "reason", "shorten_waits"]

PATIENCE: Final = {  # what boto reads: three seconds to connect instead of sixty, three attempts instead of five
    "AWS_DEFAULTS_MODE": "standard",
    "AWS_MAX_ATTEMPTS": "3",
}
_PROBE: Final = {"AWS_MAX_ATTEMPTS": "1", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "1"}
_PROBE_SECONDS: Final = 15.0
_START_SECONDS: Final = 120.0  # of a probe, which first imports the client of a store, on a busy machine


def shorten_waits() -> None:
    """Let this process's clients of boto wait as long for bytes as the others here; no variable says so."""
    with contextlib.suppress(ImportError):
        import boto3
        from botocore.config import Config
        from botocore.session import get_session

        session = get_session()
        session.set_default_client_config(Config(connect_timeout=5, read_timeout=20))
        boto3.setup_default_session(botocore_session=session)


def probe(module: str, what: str, cure: str, *arguments: str) -> None:
    """Let ``python -m module`` try a store, and refuse what it refuses.

    It is another process so that whatever a client waits for ends in time.

    Args:
        module: exits with 0, or prints one line and exits with another code; see :func:`limited`.
        what: the setting and its value, with no credential.
        cure: what else can be done.
        arguments: of the module.

    Raises:
        UserError: the store cannot be used; one line with the cure.
    """
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command,
            env={**PATIENCE, **os.environ, **_PROBE},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_START_SECONDS + _PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        late = f"its client does not start within {_START_SECONDS:.0f} s; try again when this machine is less busy"
        raise UserError(f"{what}: {late}, or {cure}") from None
    if done.returncode:
        said = [*done.stderr.splitlines(), *done.stdout.splitlines()] or [f"exit code {done.returncode}"]
        raise UserError(f"{what}: {brief(hide(said[-1]), 400)}, or {cure}")


@contextlib.contextmanager
def limited(seconds: float = _PROBE_SECONDS) -> Iterator[None]:
    """End this process, which is a probe's, with one line on stderr if the block takes longer.

    What it imports belongs before the block: that takes as long as this machine is busy, whatever the store does.
    """
    late = threading.Timer(seconds, _end, [seconds])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _end(seconds: float) -> None:
    print(f"it does not answer within {seconds:.0f} s; correct its endpoint, or see to the network", file=sys.stderr)
    sys.stderr.flush()
    os._exit(2)  # whatever the client waits for

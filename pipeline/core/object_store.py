"""What the store of results and that of MLflow's artifacts share: short waits, a probe with a limit, silent secrets."""

import contextlib
import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from bdl_pipe.errors import UserError, brief

PATIENCE: Final = {  # what boto reads: three seconds to connect instead of sixty, three attempts instead of five
    "AWS_DEFAULTS_MODE": "standard",
    "AWS_MAX_ATTEMPTS": "3",
}
_PROBE: Final = {"AWS_MAX_ATTEMPTS": "1", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "1"}
_PROBE_SECONDS: Final = 15.0
_START_SECONDS: Final = 120.0  # of a probe, which first imports the client of a store, on a busy machine
_SECRET: Final = re.compile(
    "secret|token|passw|(access|account|customer|private|api|oss)_key|credential|connection_string", re.IGNORECASE
)
_NO_SECRET: Final = re.compile("(_file|_path|path)$", re.IGNORECASE)  # says where a secret lies
_IDENTIFIER: Final = re.compile(r"\bA(?:KI|SI)A[A-Z0-9]{12,}\b")  # of a pair of AWS's keys
_MISSING: Final = {"NoSuchBucket", "NO_SUCH_BUCKET", "RESOURCE_NOT_FOUND", "not found"}
_USERINFO: Final = re.compile(r"(?<=://)[^/\s'\"]*@")
_SHORTEST: Final = 8  # characters of a variable's secret; a shorter value, such as "false", is found in any text
_SHORTEST_KNOWN: Final = 4
_ARROW: Final = re.compile(r"AWS Error (?:UNKNOWN )?\(?(?:HTTP status )?(\w+)|^Bucket '.*' (not found)")
_DENIED: Final = {
    "ACCESS_DENIED",  # as pyarrow has it
    "INVALID_ACCESS_KEY_ID",
    "INVALID_CLIENT_TOKEN_ID",
    "SIGNATURE_DOES_NOT_MATCH",
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "Forbidden",
    "Unauthorized",
    "401",
    "403",
}
_SILENT: Final = {
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "EndpointConnectionError",
    "NETWORK_CONNECTION",  # as pyarrow has it
    "REQUEST_TIMEOUT",
    "FSTimeoutError",
    "ReadTimeoutError",
    "TimeoutError",
    "gaierror",
}


def is_secret(name: str) -> bool:
    """Say whether a variable or an option of this name holds a credential."""
    return bool(_SECRET.search(name)) and not _NO_SECRET.search(name)


def has_userinfo(url: str) -> bool:
    """Say whether a URL names a user before its host, and so perhaps a password."""
    return bool(_USERINFO.search(url))


def hide(text: str, known: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> str:
    """Take credentials out of a text: those of the environment, ``known`` ones, and users in URLs."""
    env = os.environ if environment is None else environment
    secrets = {value for name, value in env.items() if is_secret(name) and len(value) >= _SHORTEST}
    secrets |= {value for value in known if len(value) >= _SHORTEST_KNOWN}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _IDENTIFIER.sub("***", _USERINFO.sub("", text))


def reason(error: BaseException, known: Iterable[str] = ()) -> str:
    """Say on one line why a store did not do what it was asked, with the cure where it is known and no credential."""
    chain = list(_chain(error))
    names, code = {type(link).__name__ for link in chain}, next(filter(None, map(_code, chain)), "")
    if names & {"NoCredentialsError", "PartialCredentialsError"}:
        return "there are no credentials; export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if {*names, code} & _SILENT:
        return "nobody answers there; correct its endpoint, or see to the network"
    if code in _DENIED or any(isinstance(link, PermissionError) for link in chain):
        what = hide(code, known) or "permission denied"
        return f"it refuses these credentials ({what}); give them the right to list, read, write and delete there"
    if any(isinstance(link, OSError) and link.errno == errno.EROFS for link in chain):
        return "its file system is mounted for reading only; mount it for writing, too"
    if code in _MISSING or any(isinstance(link, FileNotFoundError) for link in chain):
        return "there is no such bucket or folder; make it, or correct the address"
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {brief(hide(text, known))}"


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


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _code(error: BaseException) -> str:
    """Return the code that an S3 server answered with, to boto or pyarrow; empty where it is no answer of one."""
    response = getattr(error, "response", None)
    found = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    if not found and (told := _ARROW.search(str(error))):
        found = told[1] or told[2]
    return str(found)

"""What the store of results and that of MLflow's artifacts share: short waits, a probe with a limit, silent secrets."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from bdl_pipe.errors import UserError, brief

PATIENCE: Final = {  # what boto reads: three seconds to connect instead of sixty, three attempts instead of five
    "AWS_DEFAULTS_MODE": "standard",
    "AWS_MAX_ATTEMPTS": "3",
}
_PROBE: Final = {"AWS_MAX_ATTEMPTS": "1", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "1"}
_PROBE_SECONDS: Final = 15.0
_SECRET: Final = re.compile("secret|token|passw|access_key|account_key|credential|connection_string", re.IGNORECASE)
_NO_SECRET: Final = re.compile("(_file|_path|path)$", re.IGNORECASE)  # says where a secret lies
_USERINFO: Final = re.compile(r"(?<=://)[^/\s'\"]*@")
_SHORTEST: Final = 8  # characters of a secret; a shorter value, such as "false", is found in any text
_DENIED: Final = {
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
    secrets = {value for name, value in env.items() if is_secret(name)} | set(known)
    for secret in sorted((s for s in secrets if len(s) >= _SHORTEST), key=len, reverse=True):
        text = text.replace(secret, "***")
    return _USERINFO.sub("", text)


def reason(error: BaseException, known: Iterable[str] = ()) -> str:
    """Say on one line why a store did not do what it was asked, with the cure where it is known and no credential."""
    chain = list(_chain(error))
    names, code = {type(link).__name__ for link in chain}, next(filter(None, map(_code, chain)), "")
    if names & {"NoCredentialsError", "PartialCredentialsError"}:
        return "there are no credentials; export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if names & _SILENT:
        return "nobody answers there; correct its endpoint, or see to the network"
    if code in _DENIED or any(isinstance(link, PermissionError) for link in chain):
        what = hide(code, known) or "permission denied"
        return f"it refuses these credentials ({what}); give them the right to list, read, write and delete there"
    if code == "NoSuchBucket" or any(isinstance(link, FileNotFoundError) for link in chain):
        return "there is no such bucket or folder; make it, or correct the address"
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {brief(hide(text, known))}"


def probe(module: str, what: str, cure: str) -> None:
    """Let ``python -m module`` try a store, and refuse what it refuses.

    It is another process so that whatever a client waits for ends in time.

    Args:
        module: exits with 0, or prints one line and exits with another code.
        what: the setting and its value, with no credential.
        cure: what else can be done.

    Raises:
        UserError: the store cannot be used; one line with the cure.
    """
    command = [sys.executable, "-m", module]
    try:
        done = subprocess.run(
            command,
            env={**PATIENCE, **os.environ, **_PROBE},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        late = f"it does not answer within {_PROBE_SECONDS:.0f} s; correct its endpoint, or see to the network"
        raise UserError(f"{what}: {late}, or {cure}") from None
    if done.returncode:
        said = [*done.stderr.splitlines(), *done.stdout.splitlines()] or [f"exit code {done.returncode}"]
        raise UserError(f"{what}: {brief(hide(said[-1]), 400)}, or {cure}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _code(error: BaseException) -> str:
    """Return the code that an S3 server answered with; empty where it is no answer of one."""
    response = getattr(error, "response", None)
    found = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    return str(found)

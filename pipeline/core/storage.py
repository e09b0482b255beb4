"""Storage that several machines share: a folder that all of them mount, or a bucket on S3, through fsspec.

An error is one line with the variable, its value, the endpoint and the cause, without credentials.
"""

import contextlib
import errno
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bdl_pipe.errors import UserError, brief
from bdl_pipe.files import write_bytes

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_CLIENT: Final = {"connect_timeout": 5, "read_timeout": 15, "retries": {"mode": "standard", "max_attempts": 3}}
_PROBE_SECONDS: Final = 30.0
_SECRET: Final = re.compile(
    "secret|token|passw|(access|account|customer|private|api|oss)_key|credential|connection_string", re.IGNORECASE
)
_LOCATION: Final = re.compile("(_file|_path|path)$", re.IGNORECASE)  # the variable holds a path, not a secret
_KEY_ID: Final = re.compile(r"\bA(?:KI|SI)A[A-Z0-9]{12,}\b")  # an AWS access key ID
_USERINFO: Final = re.compile(r"(?<=://)[^/\s'\"]*@")
_SHORTEST: Final = 8  # characters of a secret in a variable; a shorter value, such as "false", occurs in any text
_REFUSED: Final = re.compile(
    "AccessDenied|AllAccessDisabled|ExpiredToken|Forbidden|InvalidAccessKeyId|InvalidToken|SignatureDoesNotMatch"
    "|Unauthorized|401|403"
)
_SILENT: Final = re.compile(
    "ConnectTimeoutError|ConnectionClosedError|ConnectionError|ConnectionRefusedError|EndpointConnectionError"
    "|FSTimeoutError|ReadTimeoutError|TimeoutError|gaierror"
)


@dataclass(frozen=True)
class Folder:
    """A folder in shared storage. It is pickled without a credential; each process connects with its own.

    Attributes:
        variable: the setting that names the storage, for errors.
        address: the storage's address: a path of this machine, or s3://bucket/path.
        name: the folder's name below the address.
    """

    variable: str
    address: str
    name: str = ""

    @property
    def place(self) -> str:
        """Return the folder's whole address."""
        return f"{self.address}/{self.name}".rstrip("/")

    def make(self) -> "Folder":
        """Create the folder on a disk, and return it; a bucket has no folders.

        Raises:
            UserError: the storage is not a folder of this machine, or cannot be written.
        """
        if "://" not in self.address:
            if not Path(self.address).is_dir():
                raise UserError(f"{self.variable}={self.address}: there is no such folder on {socket.gethostname()}")
            with self._explained("written"):
                Path(self.address, self.name).mkdir(parents=True, exist_ok=True)
        return self

    def save(self, name: str, blob: bytes) -> None:
        """Write a file completely or not at all."""
        with self._explained("written"):
            if "://" not in self.address:
                write_bytes(Path(self.address, self.name, name), blob)
                return
            files, path = self._open()
            files.pipe_file(f"{path}/{name}", blob)

    def load(self, name: str) -> bytes | None:
        """Read a file; None if there is none."""
        with self._explained("read"):
            files, path = self._open()
            try:
                return bytes(files.cat_file(f"{path}/{name}"))
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with self._explained("removed"), contextlib.suppress(FileNotFoundError):
            files, path = self._open()
            files.rm_file(f"{path}/{name}")

    def _open(self) -> "tuple[AbstractFileSystem, str]":
        from fsspec.core import url_to_fs

        options = {"config_kwargs": _CLIENT, "use_listings_cache": False} if self.address.startswith("s3:") else {}
        files, path = url_to_fs(self.place, **options)
        return files, str(path)

    @contextlib.contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # each file system has its own exceptions
            what = f"{self.variable}={hide(self.address)}"
            raise UserError(f"{what}: cannot be {verb}{_endpoint(self.address)}: {reason(error)}") from None


def require(variable: str, address: str) -> None:
    """Check, before any work starts, that storage can be written, read and cleaned.

    Raises:
        UserError: a check fails or takes more than half a minute; the message has the variable and the cause.
    """
    folder, name, text = Folder(variable, address), f"probe-{os.urandom(16).hex()}", os.urandom(16)

    def probe() -> None:
        folder.make()
        folder.save(name, text)
        if folder.load(name) != text:
            raise UserError(f"{variable}={hide(address)}: returns other bytes than were written")
        folder.remove(name)

    late = f"{variable}={hide(address)}: does not answer within {_PROBE_SECONDS:.0f} s{_endpoint(address)}"
    limited(probe, _PROBE_SECONDS, late)


def limited(probe: Callable[[], None], seconds: float, late: str) -> None:
    """Call ``probe`` in a thread, so that a client that never returns does not block this process.

    Raises:
        UserError: ``late``, if the call takes longer than ``seconds``.
        Exception: the error of ``probe``.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            probe()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise UserError(late)
    if errors:
        raise errors[0]


def is_secret(name: str) -> bool:
    """Return whether a variable or an option of this name holds a credential."""
    return bool(_SECRET.search(name)) and not _LOCATION.search(name)


def has_userinfo(url: str) -> bool:
    """Return whether a URL names a user, and so perhaps a password, before its host."""
    return bool(_USERINFO.search(url))


def hide(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Remove credentials from a text: secrets of the environment, key identifiers, users in URLs."""
    env = os.environ if environment is None else environment
    secrets = {value for name, value in env.items() if is_secret(name) and len(value) >= _SHORTEST}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _KEY_ID.sub("***", _USERINFO.sub("", text))


def reason(error: BaseException) -> str:
    """Describe a storage error in one line, with a cure if there is one, and without credentials."""
    chain = list(_chain(error))
    names, code = {type(link).__name__ for link in chain}, next(filter(None, map(_code, chain)), "")
    if names & {"NoCredentialsError", "PartialCredentialsError"}:
        return "there are no credentials; export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if any(map(_SILENT.fullmatch, {*names, code})):
        return "nothing answers there; correct its endpoint, or repair the network"
    if _REFUSED.fullmatch(code) or any(isinstance(link, PermissionError) for link in chain):
        what = hide(code) or "permission denied"
        return f"it refuses these credentials ({what}); give them the right to list, read, write and delete there"
    if any(isinstance(link, OSError) and link.errno == errno.EROFS for link in chain):
        return "its file system is mounted read-only; mount it for writing"
    if code in ("NoSuchBucket", "NoSuchKey", "404") or any(isinstance(link, FileNotFoundError) for link in chain):
        return "there is no such bucket or folder; create it, or correct the address"
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {brief(hide(text))}"


def _endpoint(address: str) -> str:
    """Return " (at URL)" for an S3 server that the environment names."""
    url = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return f" (at {hide(url)})" if url and address.startswith("s3:") else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that it was raised from."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _code(error: BaseException) -> str:
    """Return the code of an S3 server's answer; empty for other errors."""
    response: Any = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""

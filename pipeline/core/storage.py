"""Storage that all machines share, for trials and checkpoints: a folder of a network's disk, or S3."""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

from . import object_store

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_CONNECT_SECONDS: Final = 5.0
_REQUEST_SECONDS: Final = 15.0  # without a byte
_ATTEMPTS: Final = 3


@dataclass(frozen=True)
class Place:
    """A folder of some file system.

    Attributes:
        files: pyarrow's file system; None: this machine's.
        path: of the folder, as ``files`` calls it.
    """

    files: "FileSystem | None"
    path: str

    def below(self, name: str) -> "Place":
        """Return a folder of this one."""
        return Place(self.files, f"{self.path}/{name}")

    def read(self, name: str) -> Mapping[str, Any] | None:
        """Read a JSON file; None where there is none."""
        blob = self.load(name)
        return None if blob is None else json.loads(blob)

    def load(self, name: str) -> bytes | None:
        """Read a file; None where there is none."""
        try:
            with self._there.open_input_stream(f"{self.path}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def save(self, name: str, blob: bytes) -> None:
        """Write a file, whole or not at all."""
        if self.files is None:
            write_bytes(Path(self.path) / name, blob)
            return
        with self.files.open_output_stream(f"{self.path}/{name}") as stream:
            stream.write(blob)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._there.delete_file(f"{self.path}/{name}")

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        self._there.create_dir(self.path, recursive=True)
        self.save(name, json.dumps(content).encode())

    def clear(self) -> None:
        """Remove all that is there."""
        self._there.delete_dir_contents(self.path, missing_dir_ok=True)

    @property
    def _there(self) -> "FileSystem":
        return self.files or _here()


def opened(variable: str, address: str, name: str = "") -> Place:
    """Return the place ``name`` in the storage at ``address``, which ``variable`` gives, and make it.

    Raises:
        UserError: it is no folder of this machine, or cannot be written.
    """
    files, root = _files_of(address)
    place = Place(files, f"{root}/{name}" if name else root)
    if files is None and not Path(root).is_dir():
        raise UserError(f"{variable}={address}: there is no such folder on {socket.gethostname()}")
    try:
        (files or _here()).create_dir(place.path, recursive=True)
    except OSError as error:
        raise UserError(f"{variable}={address}: cannot be written: {object_store.reason(error)}") from None
    return place


def require(variable: str, address: str) -> None:
    """Refuse storage that cannot be written, read and cleaned, before any work starts.

    Raises:
        UserError: one line with the cure, within seconds.
    """
    if address.startswith("s3://"):
        object_store.probe("pipeline.core.storage", f"{variable}={address}", f"unset {variable}", address)
    elif address:
        opened(variable, address)


def main(address: str) -> int:
    """Try out storage on S3; print why it cannot be used."""
    try:
        place, name, text = Place(*_files_of(address)), f"probe-{os.urandom(16).hex()}", os.urandom(16)
        with object_store.limited():
            place.save(name, text)
            same = place.load(name) == text
            place.remove(name)
    except Exception as error:  # whatever pyarrow and botocore raise
        print(object_store.reason(error), file=sys.stderr)
        return 2
    if not same:
        print("what is written there is not what is read", file=sys.stderr)
    return 0 if same else 2


def _here() -> "FileSystem":
    from pyarrow import fs

    return fs.LocalFileSystem()


def _files_of(address: str) -> tuple["FileSystem | None", str]:
    if not address.startswith("s3://"):
        return None, address
    from pyarrow import fs

    endpoint = urlsplit(_endpoint())
    elsewhere = {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme} if endpoint.netloc else {}
    files = fs.S3FileSystem(
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_REQUEST_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        **elsewhere,
    )
    return files, address.removeprefix("s3://")


def _endpoint() -> str:
    """Return the endpoint that DVC and MLflow find: the environment's, or that of ~/.aws/config; empty: AWS's own."""
    if named := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        return named
    try:
        from botocore.session import get_session
    except ImportError:
        return ""
    session = get_session()  # pyarrow reads keys in that file, but no endpoint
    profile = session.get_scoped_config()
    services = session.full_config.get("services", {}).get(profile.get("services"), {})
    return str(services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url") or "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

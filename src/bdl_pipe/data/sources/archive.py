"""Data sets as original files: their description, the search for them, the check of their hashes, and downloads.

Files are searched in the user's folder ``$BDL_DATA_DIR/<set>/``, then in a system package's folder, and then downloaded
through TensorFlow Datasets (TFDS), without TensorFlow. The SHA-256 hashes come from TFDS's checksum lists; if copies of
a file differ only in their gzip header, the hash is of the decompressed content.

TFDS downloads, verifies and caches files (``$TFDS_DATA_DIR`` or ``~/tensorflow_datasets``) as ArrayRecord. Its own
builders need TensorFlow to unpack files, so a small builder passes the original files to this package's parsers.
Without a network TFDS retries for minutes, so reachability is tested first.
"""

import gzip
import hashlib
import os
import socket
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import numpy as np

from ...errors import DataError, UserError
from ...files import sha256
from ..examples import Examples
from ..raw import Raw

FOLDER_VARIABLE: Final = "BDL_DATA_DIR"
_TIMEOUT: Final = 3.0  # seconds per host
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True)
class File:
    """One original file: its URL, size and SHA-256; ``content`` is the SHA-256 of the decompressed content."""

    url: str
    bytes: int
    sha256: str
    content: str = ""

    @property
    def name(self) -> str:
        """Return the file's name, the last part of its URL."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Archive:
    """A set made of original files.

    Attributes:
        files: the original files.
        shape: the shape of an image, (channel, height, width).
        parse: the folder of the files -> raw rows.
        system: the name of a system package, and the folder with its copy of the files.
    """

    name: str
    files: tuple[File, ...]
    shape: tuple[int, int, int]
    parse: Callable[[Path], Raw]
    system: tuple[str, Path] | None = None


def read_archive(archive: Archive) -> Raw:
    """Read a set of original files, from a folder that has them or else by TFDS.

    Raises:
        UserError: the files are not on this machine and cannot be downloaded.
        DataError: a file is missing or is not the published file.
    """
    folder = locate(archive)
    if folder is None:
        return fetch(archive)
    for file in archive.files:
        verify(folder / file.name, file)
    return archive.parse(folder)


def manual_folder(name: str) -> Path | None:
    """Return ``$BDL_DATA_DIR/<set>`` if the variable is set and the folder exists."""
    root = os.environ.get(FOLDER_VARIABLE)
    folder = Path(root) / name if root else None
    return folder if folder is not None and folder.is_dir() else None


def locate(archive: Archive) -> Path | None:
    """Return the user's folder if it exists, else the system package's folder if it holds any of the files.

    Raises:
        DataError: a file is missing in this folder.
    """
    folders = [manual_folder(archive.name), archive.system[1] if archive.system else None]
    for folder in folders:
        present = [f for f in archive.files if folder is not None and (folder / f.name).is_file()]
        if folder is None or (not present and folder != folders[0]):
            continue
        for file in archive.files:
            if file not in present:
                raise DataError(f"{folder / file.name}: is missing; {archive.name} needs it from {file.url}")
        return folder
    return None


def verify(path: Path, file: File) -> None:
    """Raise DataError if ``path`` is not the published file."""
    expected, mode = (file.content, "decompressed ") if file.content else (file.sha256, "")
    digest = hashlib.sha256(unzipped(path)).hexdigest() if file.content else sha256(path)
    if digest != expected:
        raise DataError(f"{path}: {mode}SHA-256 must be {expected}, got {digest}; download it again from {file.url}")


def unzipped(path: Path) -> bytes:
    """Return the content of a gzip file.

    Raises:
        DataError: the file is truncated or not gzip.
    """
    try:
        with gzip.open(path, "rb") as stream:
            return stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is truncated or not a gzip file ({error})") from None


def members(path: Path, wanted: list[str]) -> dict[str, bytes]:
    """Read some members of a gzipped tar archive; only regular files are read, and nothing is extracted to disk.

    Reading stops after the last wanted member and skips the rest, such as STL-10's 2.8 GB without labels.

    Raises:
        DataError: the archive is truncated before the last wanted member, is not an archive, or lacks a member.
    """
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                stream = archive.extractfile(member) if name in wanted and member.isfile() else None
                if stream is not None:
                    contents[name] = stream.read()
                if len(contents) == len(wanted):
                    break
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is truncated or not a gzipped tar archive ({error})") from None
    for name in wanted:
        if name not in contents:
            raise DataError(f"{path}: must contain {name}")
    return contents


def fetch(archive: Archive, *, downloads: Path | None = None, cache: Path | None = None) -> Raw:
    """Return the set's rows in their original order, from TFDS's cache or a download.

    Args:
        downloads: a folder with downloaded original files.
        cache: TFDS's folder of data sets.

    Raises:
        UserError: there is no network, or TFDS is not installed; the message lists solutions.
        DataError: a downloaded file is not the published file.
    """
    try:
        import tensorflow_datasets as tfds
        from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    except ImportError as error:
        reason = f"not found, and tensorflow-datasets is not installed ({error})"
        raise UserError(f"data set {archive.name}: {reason}; {_ways_out(archive)}") from None
    builder = _builder(tfds, archive, cache)
    if not builder.data_path.exists():
        if downloads is None:
            require_reachable(archive)
        config = tfds.download.DownloadConfig(manual_dir=downloads, num_shards=1)
        try:
            builder.download_and_prepare(download_config=config)
        except NonMatchingChecksumError as error:
            what = str(error).splitlines()[0].removesuffix(":")
            raise DataError(f"data set {archive.name}: {what}; delete it and try again") from None
        except (tfds.download.DownloadError, OSError) as error:
            raise UserError(f"data set {archive.name}: the download failed ({error}); {_ways_out(archive)}") from None
    parts = []
    for part in ("train", "test"):
        rows = list(builder.as_data_source(part))
        labels = np.array([row["label"] for row in rows], dtype=np.int64)
        parts.append(Examples(np.stack([row["image"] for row in rows]), labels))
    train, test = parts
    classes = tuple(builder.info.metadata["classes"])
    return Raw(str(builder.data_path), "classification", "image", train, test, classes)


def require_reachable(archive: Archive) -> None:
    """Raise UserError within seconds if a host of the files does not answer."""
    addresses = set[tuple[str, int]]()
    for file in archive.files:  # a download connects to the file's host, or to the environment's proxy
        scheme, host = urlsplit(file.url).scheme, urlsplit(file.url).hostname or ""
        proxy = None if proxy_bypass(host) else getproxies().get(scheme)
        parts = urlsplit(proxy if proxy and "://" in proxy else file.url)
        addresses.add((parts.hostname or "", parts.port or _PORTS[parts.scheme]))
    for host, port in sorted(addresses):
        try:
            socket.create_connection((host, port), timeout=_TIMEOUT).close()
        except OSError as error:
            raise UserError(
                f"data set {archive.name}: {host} cannot be reached ({error}); {_ways_out(archive)}"
            ) from None


def _ways_out(archive: Archive) -> str:
    names = ", ".join(f.name for f in archive.files)
    package = f"install the system package (apt-get install {archive.system[0]}), or " if archive.system else ""
    return f"{package}put {names} into ${FOLDER_VARIABLE}/{archive.name}/, or run where there is a network"


def _builder(tfds: Any, archive: Archive, cache: Path | None) -> Any:
    """Make a TFDS builder of this archive, with a class that is defined here because TFDS is imported lazily."""
    from tensorflow_datasets.core.download.checksums import UrlInfo

    base: Any = tfds.core.GeneratorBasedBuilder

    class Builder(base, skip_registration=True):  # type: ignore[call-arg]
        VERSION = tfds.core.Version("1.0.0")
        name = f"bdl_{archive.name}"
        url_infos: ClassVar[dict[str, Any]] = {
            f.url: UrlInfo(size=f.bytes, checksum=f.sha256, filename=f.name) for f in archive.files
        }

        def _info(self) -> Any:
            features = {"image": tfds.features.Tensor(shape=archive.shape, dtype=np.uint8), "label": np.int64}
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                metadata=tfds.core.MetadataDict(),
                disable_shuffling=True,  # the rows keep the order of the original files
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            with TemporaryDirectory() as folder:
                for name, path in dl_manager.download({f.name: f.url for f in archive.files}).items():
                    (Path(folder) / name).symlink_to(Path(os.fspath(path)).absolute())  # TFDS has changed the names
                raw = archive.parse(Path(folder))
            assert raw.test is not None
            self.info.metadata["classes"] = list(raw.classes)
            return {"train": self._generate_examples(raw.train), "test": self._generate_examples(raw.test)}

        def _generate_examples(self, examples: Examples) -> Iterator[tuple[int, dict[str, Any]]]:
            for i, (image, label) in enumerate(zip(examples.inputs, examples.targets, strict=True)):
                yield i, {"image": image, "label": label}

    return Builder(data_dir=cache, file_format="array_record")

"""Downloads through TensorFlow Datasets, without TensorFlow.

TFDS downloads, verifies and caches files (``$TFDS_DATA_DIR`` or ``~/tensorflow_datasets``) as ArrayRecord. Its own
builders need TensorFlow to unpack files, so a small builder passes the original files to this package's parsers.
Without a network TFDS retries for minutes, so reachability is tested first.
"""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import numpy as np

from ...errors import DataError, UserError
from ..examples import Examples
from ..raw import Raw
from .files import FOLDER_VARIABLE, Archive

_TIMEOUT: Final = 3.0  # seconds per host
_PORTS: Final = {"http": 80, "https": 443}


def fetch(archive: Archive, *, downloads: Path | None = None, cache: Path | None = None) -> Raw:
    """Return the set's rows in their original order, from TFDS's cache or a download.

    Args:
        downloads: a folder with downloaded original files.
        cache: TFDS's folder of data sets.

    Raises:
        UserError: there is no network, or TFDS is not installed; the message lists solutions.
        DataError: a downloaded file is not the published file.
    """
    tfds = _import(archive)
    builder = _builder(tfds, archive, cache)
    if not builder.data_path.exists():
        if downloads is None:
            require_reachable(archive)
        config = tfds.download.DownloadConfig(manual_dir=downloads, num_shards=1)
        try:
            builder.download_and_prepare(download_config=config)
        except _checksum_error() as error:
            what = str(error).splitlines()[0].removesuffix(":")
            raise DataError(f"data set {archive.name}: {what}; delete it and try again") from None
        except (tfds.download.DownloadError, OSError) as error:
            raise UserError(f"data set {archive.name}: the download failed ({error}); {_ways_out(archive)}") from None
    train, test = (_rows(builder.as_data_source(part)) for part in ("train", "test"))
    classes = tuple(builder.info.metadata["classes"])
    return Raw(str(builder.data_path), "classification", "image", train, test, classes)


def require_reachable(archive: Archive) -> None:
    """Raise UserError within seconds if a host of the files does not answer."""
    for host, port in sorted({_address(f.url) for f in archive.files}):
        try:
            socket.create_connection((host, port), timeout=_TIMEOUT).close()
        except OSError as error:
            raise UserError(
                f"data set {archive.name}: {host} cannot be reached ({error}); {_ways_out(archive)}"
            ) from None


def _address(url: str) -> tuple[str, int]:
    """Return the address that a download of ``url`` connects to: its host, or the environment's proxy."""
    scheme, host = urlsplit(url).scheme, urlsplit(url).hostname or ""
    proxy = None if proxy_bypass(host) else getproxies().get(scheme)
    parts = urlsplit(proxy if proxy and "://" in proxy else url)
    return parts.hostname or "", parts.port or _PORTS[parts.scheme]


def _ways_out(archive: Archive) -> str:
    names = ", ".join(f.name for f in archive.files)
    package = f"install the system package (apt-get install {archive.system[0]}), or " if archive.system else ""
    return f"{package}put {names} into ${FOLDER_VARIABLE}/{archive.name}/, or run where there is a network"


def _import(archive: Archive) -> Any:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        reason = f"not found, and tensorflow-datasets is not installed ({error})"
        raise UserError(f"data set {archive.name}: {reason}; {_ways_out(archive)}") from None
    return tfds


def _checksum_error() -> type[Exception]:
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

    return NonMatchingChecksumError


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
            raw = _parse(archive, dl_manager.download({f.name: f.url for f in archive.files}))
            assert raw.test is not None
            self.info.metadata["classes"] = list(raw.classes)
            return {"train": self._generate_examples(raw.train), "test": self._generate_examples(raw.test)}

        def _generate_examples(self, examples: Examples) -> Iterator[tuple[int, dict[str, Any]]]:
            for i, (image, label) in enumerate(zip(examples.inputs, examples.targets, strict=True)):
                yield i, {"image": image, "label": label}

    return Builder(data_dir=cache, file_format="array_record")


def _parse(archive: Archive, paths: dict[str, Any]) -> Raw:
    """Parse downloaded files under their original names, which TFDS has changed."""
    with TemporaryDirectory() as folder:
        for name, path in paths.items():
            (Path(folder) / name).symlink_to(Path(os.fspath(path)).absolute())
        return archive.parse(Path(folder))


def _rows(source: Any) -> Examples:
    images = np.stack([row["image"] for row in source])
    return Examples(images, np.array([row["label"] for row in source], dtype=np.int64))

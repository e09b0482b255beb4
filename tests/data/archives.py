"""Small archives in the published formats, written here byte by byte."""

import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import scipy.io

from bdl_pipe.data.catalog import CATALOG, Entry
from bdl_pipe.data.sources.archive import Archive

ARCHIVES = {name: entry.rows for name, entry in CATALOG.items() if isinstance(entry.rows, Archive)}
CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def images(rows: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, *shape), dtype=np.uint8)


def labels(rows: int, classes: int) -> np.ndarray:
    return np.arange(rows, dtype=np.int64) % classes


def tar(to: Path | BinaryIO, members: dict[str, bytes]) -> None:
    place = {"name": to} if isinstance(to, Path) else {"fileobj": to}
    with tarfile.open(**place, mode="w:gz", compresslevel=1) as archive:  # type: ignore[call-overload]
        for name, blob in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(blob)
            archive.addfile(info, io.BytesIO(blob))


def records(pixels: np.ndarray, *codes: np.ndarray) -> bytes:
    """Records of CIFAR: an image's labels, a byte each, and then its pixels."""
    return b"".join(bytes(y) + x.tobytes() for x, *y in zip(pixels, *codes, strict=True))


def cifar10(folder: Path, per_batch: int = 4, test: int = 10) -> None:
    pixels, codes = images(5 * per_batch, (3, 32, 32)), labels(5 * per_batch, 10)
    parts = zip(np.split(pixels, 5), np.split(codes, 5), strict=True)
    members = {f"cifar-10-batches-bin/data_batch_{i}.bin": records(*part) for i, part in enumerate(parts, start=1)}
    members["cifar-10-batches-bin/test_batch.bin"] = records(images(test, (3, 32, 32), 1), labels(test, 10))
    members["cifar-10-batches-bin/batches.meta.txt"] = ("\n".join(CIFAR10_NAMES) + "\n\n").encode()
    tar(folder / "cifar-10-binary.tar.gz", members)


def cifar100(folder: Path, train: int = 120, test: int = 100) -> None:
    fine, fine_test = labels(train, 100), labels(test, 100)
    members = {
        "cifar-100-binary/train.bin": records(images(train, (3, 32, 32)), fine % 20, fine),
        "cifar-100-binary/test.bin": records(images(test, (3, 32, 32), 1), fine_test % 20, fine_test),
        "cifar-100-binary/fine_label_names.txt": "".join(f"thing{i}\n" for i in range(100)).encode(),
        "cifar-100-binary/coarse_label_names.txt": "".join(f"kind{i}\n" for i in range(20)).encode(),
    }
    tar(folder / "cifar-100-binary.tar.gz", members)


def svhn(folder: Path, train: int = 20, test: int = 10) -> None:
    for part, rows, seed in (("train", train, 0), ("test", test, 1)):
        codes = labels(rows, 10)
        arrays = {
            "X": images(rows, (3, 32, 32), seed).transpose(2, 3, 1, 0),
            "y": np.where(codes == 0, 10, codes)[:, None].astype(np.uint8),  # SVHN writes the digit 0 as 10
        }
        scipy.io.savemat(folder / f"{part}_32x32.mat", arrays)


STL10_NAMES = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]


def stl10(folder: Path, train: int = 10, test: int = 20) -> None:
    members = {}
    for part, rows, seed in (("train", train, 0), ("test", test, 1)):
        columns = images(rows, (3, 96, 96), seed).transpose(0, 1, 3, 2)  # written column by column
        members[f"stl10_binary/{part}_X.bin"] = columns.tobytes()
        members[f"stl10_binary/{part}_y.bin"] = (labels(rows, 10) + 1).astype(np.uint8).tobytes()
    members["stl10_binary/class_names.txt"] = ("\n".join(STL10_NAMES) + "\n").encode()
    members["stl10_binary/unlabeled_X.bin"] = bytes(3 * 96 * 96)
    tar(folder / "stl10_binary.tar.gz", members)


def idx(folder: Path, train: int = 40, test: int = 20) -> None:
    for part, rows, seed in (("train", train, 0), ("t10k", test, 1)):
        pixels, codes = images(rows, (28, 28), seed), labels(rows, 10).astype(np.uint8)
        header = b"\0\0\x08\x03" + struct.pack(">3I", rows, 28, 28)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels.tobytes()))
        header = b"\0\0\x08\x01" + struct.pack(">I", rows)
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + codes.tobytes()))


WRITERS = {"cifar10": cifar10, "cifar100": cifar100, "svhn": svhn, "stl10": stl10, "mnist": idx, "fashion_mnist": idx}


def small(name: str, folder: Path) -> Archive:
    """Write a small archive of a set into ``folder``; return its entry with the small files' sizes and hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    WRITERS[name](folder)
    files = []
    for file in ARCHIVES[name].files:
        blob = (folder / file.name).read_bytes()
        content = hashlib.sha256(gzip.decompress(blob)).hexdigest() if file.content else ""
        files.append(replace(file, bytes=len(blob), sha256=hashlib.sha256(blob).hexdigest(), content=content))
    return replace(ARCHIVES[name], files=tuple(files))


def small_entry(name: str, folder: Path) -> Entry:
    """Write a small archive of a set into ``folder``; return the set's entry of the catalogue with this archive."""
    return replace(CATALOG[name], rows=small(name, folder))


def rewritten(blob: bytes, name: str, change: Callable[[bytes], tuple[bytes, str]], inside: bool) -> tuple[bytes, str]:
    """Apply ``change`` to a file's bytes or, with ``inside``, to its packed content; return bytes and a description."""
    if not inside or not name.endswith(".gz"):
        return change(blob)
    if not name.endswith(".tar.gz"):
        content, about = change(gzip.decompress(blob))
        return gzip.compress(content, compresslevel=1), f"inside, {about}"
    with tarfile.open(fileobj=io.BytesIO(blob)) as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]
    hurt = sorted(members)[len(blob) % len(members)]
    members[hurt], about = change(members[hurt])
    with io.BytesIO() as sink:
        tar(sink, members)
        return sink.getvalue(), f"{hurt}, {about}"

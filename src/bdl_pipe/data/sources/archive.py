"""Sets that come as original files: where those files lie, and whether they are the right ones.

Looked for, in this order: the user's folder ``$BDL_DATA_DIR/<set>/``, a system package's folder,
the download of ``fetch``. SHA-256 of the files are those of TFDS's checksum lists; where copies
differ in their gzip header alone, of the decompressed content.
"""

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...errors import DataError
from ..raw import Raw
from .cifar import read_cifar10, read_cifar100
from .idx import read_idx
from .stl10 import read_stl10
from .svhn import read_svhn

FOLDER_VARIABLE: Final = "BDL_DATA_DIR"


@dataclass(frozen=True)
class File:
    """One original file: its URL, size and SHA-256 as downloaded; ``content``: SHA-256 once gunzipped."""

    url: str
    bytes: int
    sha256: str
    content: str = ""

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Archive:
    """A set made of original files.

    Attributes:
        files: all of them.
        shape: of an image, (channel, height, width).
        parse: the folder that holds them -> raw rows.
        system: a system package and the folder where it puts the files.
    """

    name: str
    files: tuple[File, ...]
    shape: tuple[int, int, int]
    parse: Callable[[Path], Raw]
    system: tuple[str, Path] | None = None


def manual_folder(name: str) -> Path | None:
    """``$BDL_DATA_DIR/<set>``, if the variable is set and the folder is there."""
    root = os.environ.get(FOLDER_VARIABLE)
    folder = Path(root) / name if root else None
    return folder if folder is not None and folder.is_dir() else None


def locate(archive: Archive) -> Path | None:
    """The first folder that holds any of the files; a folder that lacks some is an error.

    Raises:
        DataError: a file is missing in a folder that has others.
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
    """Raises DataError where ``path`` is not the published file."""
    expected, mode = (file.content, "decompressed ") if file.content else (file.sha256, "")
    found = content_sha256(path) if file.content else _sha256(path)
    if found != expected:
        raise DataError(f"{path}: {mode}SHA-256 must be {expected}, got {found}; download it again from {file.url}")


def content_sha256(path: Path) -> str:
    """SHA-256 of what a gzip file holds.

    Raises:
        DataError: the file is truncated or not gzip.
    """
    try:
        with gzip.open(path, "rb") as stream:
            return _digest(stream.read)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is truncated or not a gzip file ({error})") from None


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return _digest(stream.read)


def _digest(read: Callable[[int], bytes]) -> str:
    digest = hashlib.sha256()
    while block := read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _mnist(host: str, rows: Mapping[str, tuple[int, str, str]]) -> tuple[File, ...]:
    return tuple(File(f"{host}/{name}-ubyte.gz", *facts) for name, facts in rows.items())


_DIGITS: Final = tuple("0123456789")
_CLOTHES: Final = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_TORONTO: Final = "https://www.cs.toronto.edu/~kriz"
_STANFORD: Final = "http://ufldl.stanford.edu/housenumbers"

FASHION_MNIST: Final = Archive(
    "fashion_mnist",
    _mnist(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3": (
                26421880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            "train-labels-idx1": (
                29515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            "t10k-images-idx3": (
                4422102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            "t10k-labels-idx1": (
                5148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        },
    ),
    (1, 28, 28),
    lambda folder: read_idx(folder, _CLOTHES),
    ("dataset-fashion-mnist", Path("/usr/share/datasets/fashion-mnist")),
)
MNIST: Final = Archive(
    "mnist",
    _mnist(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        {
            "train-images-idx3": (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", ""),
            "train-labels-idx1": (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", ""),
            "t10k-images-idx3": (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", ""),
            "t10k-labels-idx1": (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", ""),
        },
    ),
    (1, 28, 28),
    lambda folder: read_idx(folder, _DIGITS),
)
CIFAR10: Final = Archive(
    "cifar10",
    (
        File(
            f"{_TORONTO}/cifar-10-binary.tar.gz",
            170052171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    (3, 32, 32),
    read_cifar10,
)
CIFAR100: Final = Archive(
    "cifar100",
    (
        File(
            f"{_TORONTO}/cifar-100-binary.tar.gz",
            168513733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    (3, 32, 32),
    read_cifar100,
)
SVHN: Final = Archive(
    "svhn",
    (
        File(
            f"{_STANFORD}/train_32x32.mat",
            182040794,
            "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        ),
        File(
            f"{_STANFORD}/test_32x32.mat",
            64275384,
            "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        ),
    ),
    (3, 32, 32),
    read_svhn,
)
STL10: Final = Archive(
    "stl10",
    (
        File(
            "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
            2640397119,
            "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
        ),
    ),
    (3, 96, 96),
    read_stl10,
)
ARCHIVES: Final[dict[str, Archive]] = {a.name: a for a in (FASHION_MNIST, MNIST, CIFAR10, CIFAR100, SVHN, STL10)}

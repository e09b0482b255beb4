"""Where raw rows come from: original files, packages' copies, downloads, and users' own files."""

from ...errors import DataError, short
from ..config import SOURCES, Boston, Concrete, Digits, ImageFolder, Mnist5k, Npz, Source, Table, Uci, Wine
from ..raw import Raw, checked
from .archive import ARCHIVES, locate, verify
from .images import read_image_folder, read_npz
from .packages import boston, digits, mnist5k
from .table import read_table
from .uci import concrete, read_uci, wine

__all__ = ["load", "load_archive"]


def load(source: Source) -> Raw:
    """The whole data set in original units, checked.

    Raises:
        UserError: it is not on this machine and cannot be fetched; the message names the ways out.
        DataError: the file, rule and value of whatever is wrong with the rows.
    """
    return checked(_read(source))


def load_archive(name: str) -> Raw:
    """A set of original files: from a folder where they already lie, else through TFDS."""
    archive = ARCHIVES[name]
    folder = locate(archive)
    if folder is None:
        from .fetch import fetch  # TFDS is not needed for anything else

        return fetch(archive)
    for file in archive.files:
        verify(folder / file.name, file)
    return archive.parse(folder)


def _read(source: Source) -> Raw:
    match source:
        case Table():
            return read_table(source)
        case ImageFolder():
            return read_image_folder(source)
        case Npz():
            return read_npz(source)
        case Boston():
            return boston()
        case Concrete():
            return concrete()
        case Wine():
            return wine()
        case Uci():
            return read_uci(source)
        case Mnist5k():
            return mnist5k()
        case Digits():
            return digits()
    return _added(source) if source.name in SOURCES else load_archive(source.name)


def _added(source: Source) -> Raw:
    """The rows of a source that was added, held to what it said of itself."""
    entry, raw = SOURCES[source.name], SOURCES[source.name].load(source)
    if not isinstance(raw, Raw):
        raise DataError(f"the data source {source.name} must load a Raw, got {short(raw)}")
    for key in ("task", "kind"):
        said, got = getattr(entry, key), getattr(raw, key)
        if said != got:
            raise DataError(f"{raw.origin}: the data source {source.name} was registered with {key} {said}, got {got}")
    rank = {"image": 4, "table": 2}[raw.kind]
    for split in (raw.train, *([raw.test] if raw.test is not None else [])):
        if split.inputs.ndim != rank or len(split.inputs) != len(split.targets):
            rule = f"inputs of {rank} dimensions and as many targets"
            shapes = f"{split.inputs.shape} and {split.targets.shape}"
            raise DataError(f"{raw.origin}: the data source {source.name} must have {rule}, got {shapes}")
    return raw

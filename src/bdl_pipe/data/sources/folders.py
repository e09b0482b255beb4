"""The images and class folders of a folder, and its other files."""

from collections import Counter
from pathlib import Path
from typing import Final

from ...errors import DataError, brief, short
from ..tables.forms import clean

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
_PARTS: Final = ("train", "training", "test", "testing", "val", "valid", "validation")  # names of parts of a set
_NO_CLASSES: Final = (  # files and folders that operating systems, file systems and network drives add
    *("__macosx", "thumbs.db", "desktop.ini", "@eadir", "lost+found", "$recycle.bin", "system volume information"),
    *("#recycle", "@recycle", "#snapshot", "~snapshot", "@tmp", "recycler", "__pycache__", "ehthumbs.db", "icon\r"),
    *("@recently-snapshot", "@sharebin", "@synoresource", "@__thumb", "@sharesnap", "@database"),
    *("network trash folder", "temporary items", "thevolumesettingsfolder", "thefindbycontentfolder"),
)


def is_hidden(path: Path) -> bool:
    """Return True for a name given by a system or an editor: it starts with a dot, or is ``__MACOSX``, …"""
    return path.name.startswith(".") or path.name.lower() in _NO_CLASSES


def image_files(folder: Path) -> list[Path]:
    """List the image files directly in ``folder``, by name, without hidden ones."""
    return [path for path in _images(folder) if not is_hidden(path)]


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in SUFFIXES)


def class_folders(root: Path) -> list[Path]:
    """List the folders directly in ``root``, by name, without hidden ones."""
    return sorted(p for p in root.iterdir() if p.is_dir() and not is_hidden(p))


def parts(path: Path) -> list[Path]:
    """List ``train/`` and ``test/`` if the classes' folders lie in these; none if ``train`` is the name of a class.

    It is one if it holds images itself and lies beside other classes: trains beside cars and buses.
    """
    train = path / "train"
    if not train.is_dir():
        return []
    others = [folder for folder in class_folders(path) if folder.name.lower() not in _PARTS]
    if others and image_files(train) and not class_folders(train):
        return []
    return [train, *([path / "test"] if (path / "test").is_dir() else [])]


def hidden_images(root: Path) -> list[Path]:
    """List the files that :func:`class_files` skips: hidden folders, and hidden images in the classes' folders."""
    folders = sorted(p for p in root.iterdir() if p.is_dir() and is_hidden(p))
    return folders + [path for folder in class_folders(root) for path in _images(folder) if is_hidden(path)]


def class_files(root: Path) -> dict[Path, list[Path]]:
    """List the images of each class's folder, by name, without hidden folders and files.

    Raises:
        DataError: there is no class folder, one has no images, or two have the same name.
    """
    files = {folder: image_files(folder) for folder in class_folders(root)}
    if not files:
        flat = "images without such folders" if image_files(root) else "none"
        raise DataError(f"{root}: must have one subfolder of images per class, got {flat}")
    for folder, paths in files.items():
        if not paths:
            part = folder.name.lower() in _PARTS and class_folders(folder)
            cure = "; call the folder of training images train and that of test images test" if part else ""
            names = sorted(f"{p.name}/" if p.is_dir() else p.name for p in folder.iterdir() if not is_hidden(p))
            got = brief(", ".join(names[:4])) + (", …" if len(names) > 4 else "") if names else "none"
            raise DataError(f"{folder}: must hold images ({' '.join(SUFFIXES)}), got {got}{cure}")
        if not clean(folder.name):
            raise DataError(f"{root}: the classes' folders must have names of more than blanks, got {folder.name!r}")
    doubled = [name for name, count in Counter(clean(folder.name) for folder in files).items() if count > 1]
    if doubled:
        rule = "the classes' folders must differ in more than blanks and forms of Unicode"
        raise DataError(f"{root}: {rule}, got {short(doubled[0])} twice")
    return files


def beside_images(path: Path) -> list[Path]:
    """List entries that are neither images nor hidden: other files, folders in a class's folder, dead links.

    Args:
        path: the folder that contains the classes' folders, or ``train/`` and ``test/``.
    """
    roots = parts(path)
    entries = [p for p in path.iterdir() if p not in roots] if roots else []
    for root in roots or [path]:
        entries += [p for p in root.iterdir() if not p.is_dir()]
        entries += [p for folder in class_folders(root) for p in folder.iterdir() if p not in {*image_files(folder)}]
    return sorted(p for p in entries if not is_hidden(p))

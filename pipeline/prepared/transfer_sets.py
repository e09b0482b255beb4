"""Transfer: labelled test rows of another set, with the labels of the set that a posterior is fitted to.

An example is CIFAR-10 to STL-10 (Maddox et al., 2019; Zeng & Van den Broeck, 2023, section 6.2). Deviations: rows of
classes that are not shared (STL-10's monkeys) are dropped; the published code of Maddox et al. counts them as frogs,
the only class of CIFAR-10 that STL-10 lacks (``transfer_names: {monkey: frog}`` has the same effect). Images of the
other set are used only for scores; their code computes SWAG's batch-normalisation statistics on STL-10's training
images.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from bdl_pipe.data.examples import Examples
from bdl_pipe.data.raw import Raw
from bdl_pipe.errors import ConfigError, DataError

from .ood_sets import test_rows, to_shape

SAME: Final[Mapping[str, str]] = {"car": "automobile"}  # STL-10's name -> CIFAR-10's name; the other names are equal
_SHOWN: Final = 10  # names in a message


def shared_rows(other: Raw, fitted: Raw, names: Mapping[str, str], path: str) -> Examples:
    """Return the test rows of ``other`` in shared classes, with the image shape and labels of ``fitted``.

    Only the names of classes are compared, so two sets with classes 0, 1, … share them.

    Args:
        names: class of ``other`` -> class of ``fitted``, for names that differ.
        path: the key of params.yaml that names ``other``.

    Raises:
        ConfigError: no class is shared, ``names`` names a class that ``fitted`` lacks, or a row is also a
            training row of ``fitted``.
        DataError: the shared classes have no test rows.
    """
    assert other.kind == fitted.kind == "image"
    place = np.array([_place(name, fitted, names, path) for name in other.classes])  # -1: not shared
    if (place < 0).all():
        rule = f"must name a set that shares a class with {fitted.origin} ({_listed(fitted)})"
        raise ConfigError(path, rule, f"{other.origin} ({_listed(other)})")
    rows = test_rows(other)
    stays = place[rows.targets] >= 0
    if not stays.any():
        raise DataError(f"{other.origin}: must have test rows of a class of {fitted.origin} ({path}), got none")
    images = to_shape(np.ascontiguousarray(rows.inputs[stays]), fitted.train.inputs.shape[1:])
    _check_apart(images, other, fitted, path)
    return Examples(images, place[rows.targets[stays]])


def _place(name: str, fitted: Raw, names: Mapping[str, str], path: str) -> int:
    if name in names:
        if names[name] not in fitted.classes:
            rule = f"must give {name} a class of {fitted.origin} ({_listed(fitted)})"
            raise ConfigError(f"{path.rpartition('.')[0]}.transfer_names", rule, names[name])
        return fitted.classes.index(names[name])
    if name in fitted.classes:
        return fitted.classes.index(name)
    known = [SAME.get(own, own) for own in fitted.classes]
    return known.index(SAME.get(name, name)) if SAME.get(name, name) in known else -1


def _check_apart(images: np.ndarray, other: Raw, fitted: Raw, path: str) -> None:
    """Refuse rows that are also training rows; for example, MNIST's training rows include ``mnist5k``."""
    seen = {row.tobytes() for row in fitted.train.inputs}
    count = sum(row.tobytes() in seen for row in images)
    if count:
        rule = f"must name a set of other images than {fitted.origin}"
        raise ConfigError(path, rule, f"{other.origin}: {count} of its {len(images)} rows are training rows")


def _listed(raw: Raw) -> str:
    more = ", …" if len(raw.classes) > _SHOWN else ""
    return ", ".join(raw.classes[:_SHOWN]) + more

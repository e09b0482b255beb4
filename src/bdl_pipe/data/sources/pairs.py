"""Images of 100 classes from two sets of ten: a garment of Fashion-MNIST and a digit of MNIST side by side.

The set is made here, from the copies of :data:`.published.FASHION_MNIST` and :func:`.uci.mnist5k`; no paper has it. It
stands in for sets of 100 classes that are not at hand, so its figures are compared by order alone.
"""

from typing import Final

import numpy as np

from ...errors import DataError
from ..examples import Examples
from ..raw import Raw
from .archive import read_archive
from .published import FASHION_MNIST
from .uci import mnist5k

TRAIN_A_CLASS: Final = 200
TEST_A_CLASS: Final = 20
_TEST_DIGITS: Final = 0.2  # the share of each digit's images that only test pairs use; mnist5k has no test rows


def fashion_digits() -> Raw:
    """Read 20,000 training and 2,000 test pairs: uint8 [n, 1, 28, 56], labels int64 [n] (0..99).

    Raises:
        UserError: Fashion-MNIST or mnist5k is not on this machine and cannot be downloaded.
        DataError: the files of one of the two are wrong.
    """
    return paired(read_archive(FASHION_MNIST), mnist5k(), TRAIN_A_CLASS, TEST_A_CLASS)


def paired(left: Raw, right: Raw, train: int, test: int) -> Raw:
    """Pair images of two sets: label = (number of right classes)·left + right, the left image on the left.

    All pairs of classes have the same number of rows. A training pair consists of training images, a test pair of test
    images; a fifth of each right class is set aside as its test images. No left image is used twice. A right image is
    used again only after all other images of its class and part. Rows are in random order.

    Args:
        left: images uint8 [n, channel, height, width] with test rows, such as Fashion-MNIST.
        right: images of the same channels and height; its test rows, if any, are not read.
        train: the number of training pairs of each of the classes.
        test: the number of test pairs of each of the classes.

    Raises:
        DataError: a left class has too few images, or a right class has none for one of the parts.
    """
    if left.test is None:
        raise DataError(f"{left.origin}: must have test rows")
    random = np.random.RandomState(0)  # its numbers are the same in every version of NumPy
    right_train, right_test = _parts(right, random)
    parts = (left.train, right_train, train), (left.test, right_test, test)
    rows = [_pairs((a, left), (b, right), count, random) for a, b, count in parts]
    classes = tuple(f"{garment}, {digit}" for garment in left.classes for digit in right.classes)
    return Raw(f"{left.origin} and {right.origin}", "classification", "image", rows[0], rows[1], classes)


def _parts(raw: Raw, random: np.random.RandomState) -> tuple[Examples, Examples]:
    """Split the rows of ``raw`` into training and test images, class by class."""
    kept, apart = list[np.ndarray](), list[np.ndarray]()
    for label in range(len(raw.classes)):
        order = random.permutation(np.flatnonzero(raw.train.targets == label))
        count = round(_TEST_DIGITS * len(order))
        kept.append(order[count:])
        apart.append(order[:count])
    first, second = (
        Examples(raw.train.inputs[rows], raw.train.targets[rows]) for rows in map(np.concatenate, (kept, apart))
    )
    return first, second


def _pairs(
    left: tuple[Examples, Raw], right: tuple[Examples, Raw], count: int, random: np.random.RandomState
) -> Examples:
    """Draw ``count`` pairs of every pair of classes; left and right: the images of one part, and their data set."""
    (a, left_raw), (b, right_raw) = left, right
    across = len(right_raw.classes)
    need = count * across
    lefts, rights, labels = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    streams = [_repeated(b, right_raw, label, count * len(left_raw.classes), random) for label in range(across)]
    for garment, name in enumerate(left_raw.classes):
        there = np.flatnonzero(a.targets == garment)
        if len(there) < need:
            raise DataError(f"{left_raw.origin}: class {name} must have at least {need} images, got {len(there)}")
        lefts.append(random.permutation(there)[:need])
        rights += [stream[garment * count : (garment + 1) * count] for stream in streams]
        labels.append(garment * across + np.repeat(np.arange(across), count))
    order = random.permutation(need * len(left_raw.classes))
    images = [a.inputs[np.concatenate(lefts)[order]], b.inputs[np.concatenate(rights)[order]]]
    return Examples(np.concatenate(images, axis=3), np.concatenate(labels)[order].astype(np.int64))


def _repeated(part: Examples, raw: Raw, label: int, length: int, random: np.random.RandomState) -> np.ndarray:
    """Return ``length`` rows of a class, one permutation after another, so that no image is used twice too soon."""
    rows = np.flatnonzero(part.targets == label)
    if len(rows) == 0:
        raise DataError(
            f"{raw.origin}: class {raw.classes[label]} must have images for training and for test, got none"
        )
    return np.concatenate([random.permutation(rows) for _ in range(-(-length // len(rows)))])[:length]

"""The set of 100 classes: each pair is found again in its two sets, and parts have no image in common."""

from collections import Counter

import numpy as np
import pytest

from bdl_pipe.data.catalog import CATALOG, Named
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.raw import Raw
from bdl_pipe.data.sources.pairs import paired
from bdl_pipe.errors import DataError

LEFT, RIGHT = ("shoe", "bag", "coat"), ("0", "1")


def numbered(count: int, classes: int, first: int) -> Examples:
    """Images of two equal pixels; each has its own number, from ``first`` on."""
    numbers = np.arange(first, first + count, dtype=np.uint8)
    return Examples(np.tile(numbers[:, None, None, None], (1, 1, 2, 1)), np.arange(count, dtype=np.int64) % classes)


def small(left: int = 24, right: int = 20) -> tuple[Raw, Raw]:
    clothes = Raw("clothes", "classification", "image", numbered(left, 3, 0), numbered(12, 3, 100), LEFT)
    return clothes, Raw("digits", "classification", "image", numbered(right, 2, 200), None, RIGHT)


def problems(raw: Raw, left: Raw, right: Raw, train: int, test: int) -> list[str]:
    """List the broken rules of a paired set, by a search of each half among the images of the two sets."""
    assert raw.test is not None and left.test is not None
    label_of = [{int(x[0, 0, 0]): int(y) for x, y in zip(p.inputs, p.targets, strict=True)}
                for p in (left.train, left.test, right.train)]  # fmt: skip
    found, used = [], list[set[int]]()
    for part, clothes, count in ((raw.train, label_of[0], train), (raw.test, label_of[1], test)):
        halves = [(int(x[0, 0, 0]), int(x[0, 0, 1])) for x in part.inputs]
        if any(garment not in clothes for garment, _ in halves):
            found.append("clothes of the other part")
        elif [len(RIGHT) * clothes[g] + label_of[2][d] for g, d in halves] != part.targets.tolist():
            found.append("labels")
        if Counter(part.targets.tolist()) != dict.fromkeys(range(6), count):
            found.append("counts")
        if len({garment for garment, _ in halves}) < len(halves):
            found.append("clothes used twice")
        used.append({digit for _, digit in halves})
    return found + (["digits of both parts"] if used[0] & used[1] else [])


def test_pairs_keep_labels_counts_and_parts() -> None:
    left, right = small()
    raw = paired(left, right, 4, 1)
    assert raw.test is not None and problems(raw, left, right, 4, 1) == []
    assert raw.train.inputs.shape == (24, 1, 2, 2) and raw.classes[3] == "bag, 1" and raw.classes[4] == "coat, 0"
    counts = Counter(raw.train.inputs[:, 0, 0, 1].tolist())  # 12 uses of 8 images of each digit
    assert set(counts.values()) == {1, 2} and len(counts) == 16
    assert not np.array_equal(raw.train.targets, np.sort(raw.train.targets))


def test_the_check_of_pairs_sees_wrong_sets() -> None:
    left, right = small()
    raw = paired(left, right, 4, 1)
    assert raw.test is not None
    swapped = Raw(raw.origin, "classification", "image", raw.test, raw.train, raw.classes)
    assert "clothes of the other part" in problems(swapped, left, right, 4, 1)
    turned = Examples(raw.train.inputs, (raw.train.targets % 2) * 3 + raw.train.targets // 2)  # digit before clothes
    assert problems(Raw("", "classification", "image", turned, raw.test, raw.classes), left, right, 4, 1) == ["labels"]
    leaking = Examples(raw.test.inputs.copy(), raw.test.targets)
    leaking.inputs[0, 0, :, 1] = raw.train.inputs[raw.train.targets % 2 == leaking.targets[0] % 2][0, 0, :, 1]
    wrong = Raw("", "classification", "image", raw.train, leaking, raw.classes)
    assert problems(wrong, left, right, 4, 1) == ["digits of both parts"]


def test_the_same_rows_come_back() -> None:
    first, second = (paired(*small(), 4, 1) for _ in range(2))
    np.testing.assert_array_equal(first.train.inputs, second.train.inputs)
    np.testing.assert_array_equal(first.train.targets, second.train.targets)


@pytest.mark.parametrize(
    ("left", "right", "rule"),
    [(23, 20, "clothes: class coat must have at least 8 images, got 7"), (24, 4, "digits: class 0 must have images")],
)
def test_sets_that_are_too_small_are_refused(left: int, right: int, rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        paired(*small(left, right), 4, 1)


def test_a_left_set_without_test_rows_is_refused() -> None:
    left, right = small()
    with pytest.raises(DataError, match="digits: must have test rows"):
        paired(right, left, 1, 1)


def test_the_built_in_set_has_two_hundred_and_twenty_pairs_of_each_class() -> None:
    raw = Named("fashion_digits").read()
    assert raw.test is not None and raw.train.inputs.dtype == np.uint8
    assert raw.train.inputs.shape == (20_000, 1, 28, 56) and raw.test.inputs.shape == (2_000, 1, 28, 56)
    assert np.bincount(raw.train.targets).tolist() == [200] * 100
    assert np.bincount(raw.test.targets).tolist() == [20] * 100
    assert raw.classes[93] == "Ankle boot, 3" and CATALOG["fashion_digits"].classes == len(raw.classes)
    digits = [{row.tobytes() for row in rows.inputs[..., 28:]} for rows in (raw.train, raw.test)]
    assert len(digits[0]) == 4_000 and len(digits[1]) == 1_000 and not digits[0] & digits[1]

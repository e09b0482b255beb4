"""Integrals over a box of up to three uniforms of a function that is polynomial between planes, by nested Gauss rules.

Planes cut the box into cells. The integral over all coordinates but the last is a polynomial of the last between the
places where as many planes meet as there are coordinates. So Gauss rules between such places, nested over the
coordinates, are exact but for rounding. No density of a sum of uniforms is used.
"""

from collections.abc import Callable
from itertools import combinations

import numpy as np

SLACK = 1e-9
Kinks = Callable[[np.ndarray], np.ndarray]


def rule(normals: np.ndarray, offsets: np.ndarray, kinks: Kinks, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points of the box [−1, 1]^d [n, d] and weights that add up to one [n].

    Args:
        normals, offsets: of the planes normal·u = offset [plane, d], [plane].
        kinks: a function of points that is zero where each plane exists [n, plane]; a plane may end at another plane.
        order: of the Gauss rules, exact to a degree of 2·order − 1 in each coordinate.
    """
    axis, weight = np.polynomial.legendre.leggauss(order)
    ends = _places(normals, offsets, kinks)
    middle, half = (ends[1:] + ends[:-1]) / 2, np.diff(ends) / 2
    last, share = (middle[:, None] + half[:, None] * axis).ravel(), (half[:, None] * weight / 2).ravel()
    if normals.shape[1] == 1:
        return last[:, None], share
    points, weights = [], []
    for value, part in zip(last, share, strict=True):

        def within(inner: np.ndarray, value: float = value) -> np.ndarray:
            return kinks(_with_last(inner, value))

        inner, inner_weights = rule(normals[:, :-1], offsets - normals[:, -1] * value, within, order)
        points.append(_with_last(inner, value))
        weights.append(part * inner_weights)
    return np.concatenate(points), np.concatenate(weights)


def _with_last(points: np.ndarray, value: float) -> np.ndarray:
    return np.concatenate([points, np.full((len(points), 1), value)], 1)


def _places(normals: np.ndarray, offsets: np.ndarray, kinks: Kinks) -> np.ndarray:
    """The last coordinates of the points of the box where d planes, or faces of the box, meet; both ends as well."""
    d = normals.shape[1]
    normals = np.concatenate([normals, np.eye(d), np.eye(d)])
    offsets = np.concatenate([offsets, np.repeat([1.0, -1.0], d)])
    sets = np.array(list(combinations(range(len(normals)), d)))
    size = np.linalg.norm(normals, axis=-1)[sets].prod(-1)
    with np.errstate(invalid="ignore"):
        sets = sets[np.abs(np.linalg.det(normals[sets])) > 1e-10 * size]
    points = np.linalg.solve(normals[sets], offsets[sets][..., None])[..., 0]
    inside = (np.abs(points) <= 1 + SLACK).all(-1)
    points, sets = points[inside], sets[inside]
    here = np.concatenate([kinks(points), np.zeros((len(points), 2 * d))], 1)  # a face has no end in the box
    real = (np.abs(np.take_along_axis(here, sets, 1)) < SLACK).all(-1)
    places = np.unique(np.clip(np.concatenate([points[real, -1], [-1.0, 1.0]]), -1, 1))
    return places[np.concatenate([[True], np.diff(places) > 1e-13])]

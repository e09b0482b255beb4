"""Sums of regression trees as tensors, so that fitted boosting is stored without pickles."""

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

_AT_ONCE: Final = 1 << 22  # the most tree nodes that are looked up together
_CLEAR: Final = 1e-5  # ten times the rounding error of a standardised float32 input
_FIELDS: Final = ("feature", "threshold", "left", "right", "value", "root", "start")
_OF_CATEGORIES: Final = ("subset", "members")


@final
class Trees:
    """The sums Σ_t f_t(x) + start for K outputs, each with its own trees.

    Attributes:
        feature, threshold, left, right, value: the attributes of every node of every tree [node]. A row goes left if
            x[feature] <= threshold. A leaf is its own left and right child, so that a walk of any length ends in it.
        root: the first node of each tree [output, tree]; outputs have equally many trees.
        start: the constant term of each output [output].
        subset: only of trees that split by categories, the subset of codes that goes left, −1 for a split by a
            threshold [node].
        members: the codes of each subset, with the code −1 first [subset, code + 1].
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        names = (*_FIELDS, *(name for name in _OF_CATEGORIES if name in tensors))
        self.tensors = {name: tensors[name] for name in names}
        self._depth = _depth(self.tensors["left"], self.tensors["right"], self.tensors["root"])

    @classmethod
    def constant(cls, values: Sequence[float]) -> "Trees":
        """Return sums without trees, with ``values`` as the constant terms."""
        numbers, whole = torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        nodes = {"feature": whole, "threshold": numbers, "left": whole, "right": whole, "value": numbers}
        root = torch.zeros(len(values), 0, dtype=torch.int64)
        return cls(nodes | {"root": root, "start": torch.tensor(values, dtype=torch.float64)})

    @property
    def rounds(self) -> int:
        """Return the number of trees of each output."""
        return self.tensors["root"].shape[1]

    def first(self, rounds: int) -> "Trees":
        """Return the sums of the first ``rounds`` rounds."""
        return Trees(self.tensors | {"root": self.tensors["root"][:, :rounds]})

    def __call__(self, inputs: Float[Tensor, "row d"]) -> Float[Tensor, "row output"]:
        """Return the sums at finite inputs, in float64."""
        outputs, trees = self.tensors["root"].shape
        chunks = inputs.double().split(max(1, _AT_ONCE // max(1, outputs * trees)))
        return torch.cat([self._sums(rows) for rows in chunks])

    def _sums(self, rows: Tensor) -> Tensor:
        nodes, root = self.tensors, self.tensors["root"]
        if not self.rounds:  # onnxruntime refuses reshapes of no values
            return nodes["start"].expand(rows.shape[0], -1)
        place = root.flatten().expand(rows.shape[0], -1)  # len would fix the number in an exported program
        for _ in range(self._depth):
            values = rows.gather(1, nodes["feature"][place])
            go_left = values <= nodes["threshold"][place]
            if "subset" in nodes:
                by_code = nodes["subset"][place] >= 0  # onnxruntime has no choice between truth values
                go_left = (go_left & ~by_code) | (self._in_subset(place, values) & by_code)
            place = torch.where(go_left, nodes["left"][place], nodes["right"][place])
        return nodes["value"][place].unflatten(1, root.shape).sum(-1) + nodes["start"]

    def _in_subset(self, place: Tensor, values: Tensor) -> Tensor:
        """Return whether the codes ``values`` are in the subsets of these nodes; arbitrary for other nodes."""
        members, subset = self.tensors["members"], self.tensors["subset"][place].clamp_min(0)
        code = values.clamp(-1, members.shape[1] - 2).long() + 1
        return members.flatten()[subset * members.shape[1] + code]


def of_boosting(model: Any, rounds: int, codes: int = 0) -> Trees:
    """Return the trees of the first ``rounds`` rounds of a fitted histogram gradient boosting of scikit-learn.

    scikit-learn's only public format of its trees is a pickle. This reads the attributes that its own prediction reads,
    and ``tests/baselines/test_rivals.py`` checks that predictions are equal.

    Args:
        codes: the largest number of codes of a category, 0 if the model has no categories. The model's categories are
            its first columns, with NaN for the code −1.
    """
    subsets = _Subsets(model, codes)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in _FIELDS[:5]}
    offset, root = 0, list[list[int]]()
    for of_round in model._predictors[:rounds]:
        root.append([])
        for predictor in of_round:
            nodes = predictor.nodes
            numbers, leaf = np.arange(len(nodes)), nodes["is_leaf"].astype(bool)
            subsets.add(predictor)
            columns["feature"].append(np.where(leaf, 0, nodes["feature_idx"]))
            columns["threshold"].append(np.where(leaf, 0.0, nodes["num_threshold"]))
            columns["left"].append(offset + np.where(leaf, numbers, nodes["left"]))
            columns["right"].append(offset + np.where(leaf, numbers, nodes["right"]))
            columns["value"].append(np.where(leaf, nodes["value"], 0.0))
            root[-1].append(offset)
            offset += len(nodes)
    tensors = dict[str, Tensor]()
    for name, parts in columns.items():
        kind = np.float64 if name in ("threshold", "value") else np.int64
        tensors[name] = torch.from_numpy(np.concatenate([np.zeros(0, kind), *parts]).astype(kind))
    start = torch.from_numpy(np.asarray(model._baseline_prediction, dtype=float).reshape(-1).copy())
    places = torch.tensor(root, dtype=torch.int64).reshape(len(root), len(start)).T.contiguous()
    return Trees(tensors | {"root": places, "start": start} | subsets.tensors())


class _Subsets:
    """The subsets of categories of the nodes of a model's trees, added tree by tree."""

    def __init__(self, model: Any, codes: int) -> None:
        encoder = model._preprocessor.named_transformers_["encoder"] if codes else None
        self._known = [] if encoder is None else encoder.categories_  # column -> the model's order of the codes
        self._codes, self._count = codes, 0
        self._subset, self._members = list[np.ndarray](), list[np.ndarray]()

    def add(self, predictor: Any) -> None:
        """Read the nodes of a tree."""
        nodes = predictor.nodes
        split = nodes["is_categorical"].astype(bool) & ~nodes["is_leaf"].astype(bool)
        assert self._codes or not split.any(), "trees of categories are not read"
        subset = np.full(len(nodes), -1)
        for number in np.flatnonzero(split):
            node = nodes[number]
            members = np.full(self._codes + 1, bool(node["missing_go_to_left"]))  # unknown codes go with empty cells
            known = self._known[node["feature_idx"]]
            known = known[~np.isnan(known)].astype(int)
            bits = predictor.raw_left_cat_bitsets[node["bitset_idx"]]
            places = np.arange(len(known))
            members[known + 1] = (bits[places // 32] >> (places % 32)) & 1
            subset[number] = self._count
            self._members.append(members)
            self._count += 1
        self._subset.append(subset)

    def tensors(self) -> dict[str, Tensor]:
        """Return ``subset`` and ``members`` of :class:`Trees`, nothing for a model without categories."""
        if not self._codes:
            return {}
        subset = np.concatenate([np.zeros(0, int), *self._subset])
        members = np.array(self._members, dtype=bool).reshape(self._count, self._codes + 1)
        empty = np.zeros((int(self._count == 0), self._codes + 1), dtype=bool)  # a lookup needs a row
        return {"subset": torch.from_numpy(subset), "members": torch.from_numpy(np.concatenate([members, empty]))}


def clear_of_rounding(trees: Trees, rows: Float[np.ndarray, "row d"]) -> Trees:
    """Raise each threshold t by 1e-5·max(1, |t|), or half-way to the next larger value of ``rows``, whichever is less.

    A threshold is a value of these rows, or midway between two values, where other whole numbers lie. A row on a
    threshold goes left; another device may round the row's inputs differently, by 1e-6 or less, and send it right. All
    ``rows`` stay on their sides.
    """
    feature, threshold = (trees.tensors[name].numpy() for name in ("feature", "threshold"))
    raised = threshold + _CLEAR * np.maximum(1.0, np.abs(threshold))
    by_threshold = trees.tensors["subset"].numpy() < 0 if "subset" in trees.tensors else np.ones(len(feature), bool)
    for column in np.unique(feature[by_threshold]):
        values, chosen = np.unique(rows[:, column]), (feature == column) & by_threshold
        place = np.searchsorted(values, threshold[chosen], side="right")
        following = np.append(values, np.inf)[place]
        raised[chosen] = np.minimum(raised[chosen], (threshold[chosen] + following) / 2)
    return Trees(trees.tensors | {"threshold": torch.from_numpy(raised)})


def _depth(left: Tensor, right: Tensor, root: Tensor) -> int:
    """Return the largest number of steps from a root to a leaf."""
    place, depth = root.flatten().unique(), 0
    while not bool((left[place] == place).all()):
        place, depth = torch.cat([left[place], right[place]]).unique(), depth + 1
    return depth

"""Scores of several test rows together: groups of rows, their joint scores, and two inputs along lines.

Random pairs depend little on each other, so that their joint is nearly the product of its marginals. Dyadic sampling
(Osband et al. 2022, "Evaluating high-order predictive distributions in deep learning") draws two random test rows, the
anchors of a group. Each observation of the group belongs to one of the two anchors, at random.

An observation is the row nearest to its anchor that is not yet in the group, with the row's own target. The first such
row is the anchor. Osband et al. repeat the anchor itself and draw each of its labels afresh. A test row has one label:
if a group contained it twice, the observations would agree whatever the noise is. The score would then be no proper
one, and a posterior that believes in too little noise, or is too wide, would be rewarded.

Groups, anchors and pairs depend only on the root seed and on the test rows: they are the same for all posteriors.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..data.examples import Examples
from ..errors import DataError, require
from ..joint_predictive import Joint, JointCategorical
from ..metrics import GroupLogProbs
from ..metrics.joint import AT_ONCE, JOINT_DRAWS, SIZES, names
from ..posterior import GaussianPosterior, JointPosterior, Posterior, Predictor, joint
from ..seeds import Seed
from .gathered import EvaluateConfig, Scores

LINE_STEPS: Final = 21  # Inputs on the line between two test rows: both ends, the middle, and others between them.
LINES: Final = 10  # number of pairs of test rows; the mean is over the lines between them
PAIRED: Final = 500  # the pairs come from this many first test rows, so that distances cost little
_APART: Final = 1e-6  # rows nearer than this share of the largest distance are equal, up to rounding
_ROWS: Final = 100  # rows of groups in one prediction, so that the draws of their functions stay small
_NEAREST: Final = 50  # anchors in one computation of distances to all rows


def keeps_functions(posterior: Posterior) -> bool:
    """Return whether a posterior has its own joint, which does not follow from the draws of its predictive."""
    return isinstance(posterior, JointPosterior | GaussianPosterior)


def random_pairs(rows: int, pairs: int, rng: Seed) -> Int[Tensor, "pair 2"]:
    """Draw pairs of two different rows. They depend on the root of ``rng`` and on no other part of its address."""
    random = Seed(rng.root).fold("evaluate", "pairs", rows, pairs).numpy()
    first = random.integers(rows, size=pairs)
    second = (first + 1 + random.integers(rows - 1, size=pairs)) % rows  # Each other row is equally likely.
    return torch.from_numpy(np.stack([first, second], 1))


def dyadic_places(rows: int, groups: int, rng: Seed) -> Int[Tensor, "group place"]:
    """Draw the anchor, 0 or 1, of each observation of the largest groups.

    The anchors depend on the root of ``rng`` and on no other part of its address. A smaller group has the first
    observations of the largest one.
    """
    random = Seed(rng.root).fold("evaluate", "dyadic", rows, groups).numpy()
    return torch.from_numpy(random.integers(2, size=(groups, SIZES[-1])))


def neighbours(
    inputs: Float[Tensor, "row ..."], anchors: Int[Tensor, "group 2"], places: Int[Tensor, "group place"]
) -> Int[Tensor, "group place"]:
    """Return the rows of groups of neighbours. Each observation is the row nearest to its anchor that is still left.

    Args:
        inputs: the transformed rows, so that distances in all columns count alike.
        anchors: the numbers of the two rows that are the anchors of each group.
        places: the anchor of each observation, 0 or 1.

    Raises:
        DataError: a group has more observations than there are rows.
    """
    rows, size = len(inputs), places.shape[1]
    if size > rows:
        raise DataError(f"a group must have at most {rows} inputs, as many as there are rows, got {size}")
    flat = inputs.flatten(1).double()
    # The other anchor can take a row that an anchor needs, so twice as many candidates are always enough.
    nearest = [
        torch.cdist(flat[part], flat).topk(min(rows, 2 * size), largest=False).indices
        for part in anchors.flatten().split(_NEAREST)
    ]
    groups, near = [], torch.cat(nearest).unflatten(0, anchors.shape).tolist()
    for candidates, of_group in zip(near, places.tolist(), strict=True):
        taken: dict[int, None] = {}
        for place in of_group:
            taken[next(row for row in candidates[place] if row not in taken)] = None
        groups.append(list(taken))
    return torch.tensor(groups)


def joint_scores(
    fitted: Predictor,
    examples: Examples,
    terms: Float[Tensor, "draw row"] | None,
    config: EvaluateConfig,
    rng: Seed,
    device: torch.device | str = "cpu",
) -> Scores:
    """Return the joint NLL and the gap of groups around two anchors and, for classes, of random pairs of rows.

    A posterior with its own joint (:func:`keeps_functions`) predicts the groups again, and its random pairs are the
    pairs of anchors. Groups of more observations than there are rows have no scores.

    Args:
        terms: the log probability of each row's own target under each draw of the predictive; None for a posterior with
            its own joint.
    """
    rows, classes = len(examples), examples.targets.ndim == 1
    sizes = [size for size in SIZES if size <= rows]
    if not config.joint_pairs or rows < 2 or not sizes:
        return {}
    pairs = random_pairs(rows, config.joint_pairs, rng)
    anchors = pairs[: config.joint_groups]
    places = dyadic_places(rows, len(anchors), rng)[:, : sizes[-1]]
    scored: dict[int | None, GroupLogProbs] = {}
    if terms is not None and classes:
        scored[None] = GroupLogProbs.of_terms(terms, pairs)
    used = 0 if terms is None else min(len(terms), AT_ONCE)
    if len(anchors):
        groups = neighbours(fitted.transform.inputs(examples.inputs, device).cpu(), anchors, places)
        if terms is not None:
            scored |= dict.fromkeys(sizes, GroupLogProbs.of_terms(terms, groups))
        else:
            around, used = _scored(fitted, examples, groups, rng, device)
            scored |= dict.fromkeys(sizes, around)
            if classes:
                scored[None], _ = _scored(fitted, examples, anchors, rng, device)
    scores: Scores = {}
    for size, of_groups in scored.items():
        for name, mean in zip(names(size), of_groups.scores(size or 2), strict=True):
            scores[name] = (mean.value, mean.count)
    return scores | ({JOINT_DRAWS.name: (float(used), 1)} if scores else {})


def nearest_pairs(
    inputs: Float[Tensor, "row ..."], targets: Int[np.ndarray, " row"], count: int
) -> list[tuple[int, int]]:
    """Return the ``count`` nearest pairs of rows of different classes; a row is in at most one pair.

    The pairs depend only on the rows. Equally near pairs are in the order of their first rows. Two rows of equal inputs
    are not a pair. There may be fewer than ``count`` pairs.
    """
    flat = inputs.flatten(1).double()
    distances, pairs = torch.cdist(flat, flat).numpy(), list[tuple[int, int]]()
    equal = (targets[:, None] == targets) | (distances <= _APART * distances.max())
    distances[equal | np.tri(len(flat), dtype=bool)] = np.inf  # Each pair stands once, with its first row first.
    while len(pairs) < count and np.isfinite(distances).any():
        rows = divmod(int(distances.argmin()), len(flat))
        distances[rows, :] = distances[:, rows] = np.inf
        pairs.append(rows)
    return pairs


def lines_between_classes(
    fitted: Predictor, examples: Examples, config: EvaluateConfig, rng: Seed, device: torch.device | str = "cpu"
) -> pa.Table | None:
    """Return :func:`same_class_along` lines between test rows of different classes, the mean over the lines.

    If a posterior is sure about two inputs, their labels do not show the dependence of the two. So lines join rows of
    different classes that are near to each other, and one of the two inputs is the middle of the line, where the class
    is in doubt. The other input moves along the line. The lines join the ``LINES`` :func:`nearest_pairs` among the
    first test rows, so that they are the same for all posteriors. A posterior of networks or masks uses the draws that
    predict the test rows.

    Returns:
        A table of ``LINE_STEPS`` rows. It is None if the targets are not classes, if there is no such pair, or if
        ``joint_groups`` is 0.
    """
    if not config.joint_groups or examples.targets.ndim != 1:
        return None
    inputs = fitted.transform.inputs(examples.inputs[:PAIRED])
    pairs = nearest_pairs(inputs, examples.targets[:PAIRED], LINES)
    lines = []
    for number, (first, second) in enumerate(pairs):
        ends, at = inputs[[first, second]].to(device), rng.fold("predict")
        if keeps_functions(fitted.posterior):  # new draws of functions for each line: errors differ
            at = at.fold("line", number)
        lines.append(same_class_along(fitted.posterior, *ends, steps=LINE_STEPS, rng=at, anchor=0.5))
    if not lines:
        return None
    means = {name: np.mean([line[name] for line in lines], axis=0) for name in lines[0].column_names}
    return pa.table(means)


def _scored(
    fitted: Predictor, examples: Examples, groups: Tensor, rng: Seed, device: torch.device | str
) -> tuple[GroupLogProbs, int]:
    """Return the log probabilities of the rows' own targets, in original units, and the draws of each of them.

    A posterior without a Gaussian draws its weights. Given a draw, rows are independent, so each row is predicted
    once for all groups. Otherwise the posterior's own joint predicts some groups at a time.
    """

    def joint_of(part: Tensor, number: int) -> tuple[Joint, Tensor]:
        """Return the joint of some groups, with ``number`` in the address of its draws, and their targets."""
        raw, targets = examples.inputs[part.numpy()], torch.from_numpy(examples.targets[part.numpy()]).to(device)
        return fitted.joint(raw, rng=rng.fold("groups", number), device=device), targets

    if not isinstance(fitted.posterior, GaussianPosterior):
        rows, places = groups.unique(return_inverse=True)
        joints = (joint_of(part, 0) for part in rows[None].split(_ROWS, 1))
        together = torch.cat([joint.draw_log_prob(targets)[:, 0] for joint, targets in joints], 1).cpu()
        return GroupLogProbs.of_terms(together, places), min(len(together), AT_ONCE)
    parts, used, count = [], 0, max(1, _ROWS // groups.shape[1])
    for start in range(0, len(groups), count):
        joint, targets = joint_of(groups[start : start + count], start)
        parts.append(GroupLogProbs.of_joint(joint, targets))
        used = 0 if joint.draws == 1 else min(joint.draws, AT_ONCE)
    return GroupLogProbs.cat(parts), used


def same_class_along(
    posterior: Posterior,
    first: Float[Tensor, " ..."],
    second: Float[Tensor, " ..."],
    *,
    steps: int,
    rng: Seed,
    anchor: float = 0.0,
) -> pa.Table:
    """Return P(Y_1 = Y_2) for an anchor and each of ``steps`` inputs on the line from ``first`` to ``second``.

    The table has one row for each place on the line. Its column ``share`` is the place of the second input: 0 is
    ``first``, and 1 is ``second``. The columns ``joint`` and ``product`` are the probability under the joint and under
    the product of the marginals.

    Args:
        first, second: transformed inputs of a posterior of classes.
        anchor: the place of the first of the two inputs on the line; by default it is ``first``.

    Raises:
        ConfigError: there are fewer than two steps.
        DataError: the inputs have different shapes, or the posterior does not predict classes.
    """
    require(steps > 1, "steps", "must be > 1", steps)
    if first.shape != second.shape:
        raise DataError(f"second must have the shape of first, {tuple(first.shape)}, got {tuple(second.shape)}")
    share = torch.linspace(0, 1, steps, dtype=first.dtype, device=first.device)
    line, fixed = (
        torch.lerp(first, second, at.reshape(-1, *[1] * first.ndim)) for at in (share, share.new_tensor([anchor]))
    )
    pairs = joint(posterior, torch.stack([fixed.expand_as(line), line], 1), rng=rng)
    if not isinstance(pairs, JointCategorical):
        raise DataError("the posterior must be one of classes, got one of regression")
    columns = {"share": share.double(), "joint": pairs.same_class(), "product": pairs.marginal_same_class()}
    return pa.table({name: values.cpu().numpy() for name, values in columns.items()})

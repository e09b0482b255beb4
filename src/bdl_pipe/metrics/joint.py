"""Scores of several rows together: the joint likelihood of random pairs, and of groups around two anchors.

The joint NLL is −log p(y_1 … y_n | x_1 … x_n, D), and the gap is log joint − log product of the marginals, both in nats
per group. If the gap is above 0, the targets confirm the dependence between rows that the posterior predicts. For
random pairs the gap is nearly 0 for every posterior, since random rows depend little on each other. Groups around two
anchors show the dependence (Osband et al. 2022). :mod:`bdl_pipe.evaluation.joint` draws the pairs and the groups.

A posterior that is approximated by S draws is scored by blocks of 20 of them: the log of a mean over S draws is too low
on average, and the more so, the fewer draws there are. Fewer than 20 draws (an ensemble) are scored as they are, and a
joint in closed form needs no draws; ``joint_draws`` says which.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..joint_predictive import Joint, mean_mixture
from .metric import Mean, Metric

SIZES: Final = (2, 5, 20)  # numbers of rows of a group around two anchors
AT_ONCE: Final = 20  # draws of each score: the log of a mean over S draws depends on S


@dataclass(frozen=True)
class GroupLogProbs:
    """Log probabilities of the first 1, 2, … n targets of each group, in float64.

    Attributes:
        joint: log p(y_1 … y_i | x_1 … x_i, D).
        product: the log of the product of the marginals, Σ_{j ≤ i} log p(y_j | x_j, D).
    """

    joint: Float[Tensor, "group row"]
    product: Float[Tensor, "group row"]

    @classmethod
    def of_terms(cls, terms: Float[Tensor, "draw batch"], groups: Int[Tensor, "group row"]) -> "GroupLogProbs":
        """Compute the log probabilities of groups of rows.

        Args:
            terms: log p(y_i | x_i, θ_s) of each row's own target under each draw.
            groups: the numbers of the rows of each group.
        """
        terms = terms.double()
        product = mean_mixture(terms, AT_ONCE)[groups].cumsum(-1)
        return cls(mean_mixture(terms[:, groups].cumsum(-1), AT_ONCE), product)

    @classmethod
    def of_joint(cls, joint: Joint, targets: Tensor) -> "GroupLogProbs":
        """Compute the log probabilities of targets under a joint."""
        product = joint.row_log_prob(targets, at_once=AT_ONCE).cumsum(-1)
        return cls(joint.chain_log_prob(targets, at_once=AT_ONCE), product)

    @classmethod
    def cat(cls, parts: "Sequence[GroupLogProbs]") -> "GroupLogProbs":
        """Join the log probabilities of several parts of the groups, on the CPU."""
        return cls(torch.cat([part.joint.cpu() for part in parts]), torch.cat([part.product.cpu() for part in parts]))

    def scores(self, rows: int) -> tuple[Mean, Mean]:
        """Return the joint NLL and the gap of the first ``rows`` rows of the groups, in nats per group."""
        joint, product = self.joint[:, rows - 1], self.product[:, rows - 1]
        return Mean.of(-joint), Mean.of(joint - product)


def names(rows: int | None) -> tuple[str, str]:
    """Return the names of the joint NLL and of the gap, of groups of ``rows`` rows. None means random pairs."""
    suffix = "" if rows is None else f"_{rows}"
    return f"joint_nll{suffix}", f"joint_gap{suffix}"


DYADIC: Final = tuple(
    metric
    for rows, around in ((rows, f"{rows} rows around two anchors, nats per group") for rows in SIZES)
    for metric in (
        Metric(names(rows)[0], f"Joint NLL {rows}", f"mean negative log joint probability of {around}", -1),
        Metric(names(rows)[1], f"Joint gap {rows}", f"log of the joint over the product of the marginals, {around}", 0),
    )
)
JOINT_GAP = Metric(  # a part of the joint NLL: a bad predictive with dependent rows can have a large gap
    "joint_gap", "Joint gap", "log of the joint over the product of the marginals of two rows", better=0
)
JOINT_DRAWS = Metric(
    "joint_draws",
    "Draws",
    "draws of one joint score, at most 20; 0: a closed form. Compare joint scores of equal draws",
    better=0,
    unit="count",
)
METRICS = (
    Metric("joint_nll", "Joint NLL", "mean negative log joint probability of the labels of two rows", better=-1),
    JOINT_GAP,
    *DYADIC,
    JOINT_DRAWS,
)

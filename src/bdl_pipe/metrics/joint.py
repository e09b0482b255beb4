"""The joint likelihood of pairs of inputs, and how far it is from the product of marginals.

log p(y_i, y_j | x_i, x_j, D) = log (1/S) Σ_s p(y_i|x_i, θ_s) p(y_j|x_j, θ_s) keeps the dependence
that shared parameters make; a predictive of one draw has none, and a gap of exactly 0.
"""

from jaxtyping import Float, Int
from torch import Tensor

from ..predictive import Categorical, mixture
from .mean import Mean


def target_terms(predictive: Categorical, targets: Int[Tensor, " batch"]) -> Float[Tensor, "draw batch"]:
    """log p(y_i | x_i, θ_s): all of a predictive that the joint needs, so that batches can be put together."""
    index = targets.long().expand(len(predictive.draw_log_probs), -1)[..., None]
    return predictive.draw_log_probs.gather(-1, index)[..., 0]


def joint_log_prob(
    terms: Float[Tensor, "draw batch"], first: Int[Tensor, " pair"], second: Int[Tensor, " pair"]
) -> Float[Tensor, " pair"]:
    """log p(y_i, y_j | x_i, x_j, D) for pairs of rows, in float64, dependence across inputs kept.

    The quantity that a distilled predictive cannot form (Korattikara et al. 2015, discussion notes, eq. 14).
    """
    terms = terms.double()
    return mixture(terms[:, first] + terms[:, second])


def joint_scores(
    terms: Float[Tensor, "draw batch"], first: Int[Tensor, " pair"], second: Int[Tensor, " pair"]
) -> tuple[Mean, Mean]:
    """(joint NLL, joint gap) over pairs of rows; the gap is log joint − log product of marginals, in nats.

    A gap above 0 says that the dependence that the draws imply is borne out by the labels.
    """
    joint, marginal = joint_log_prob(terms, first, second), mixture(terms.double())
    return Mean.of(-joint), Mean.of(joint - (marginal[first] + marginal[second]))

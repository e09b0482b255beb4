"""The student's losses against a predictive: cross-entropies, which omit the constant of the KL.

    classes:    L̂ = −Σ_k p(y = k | x) log S(y = k | x, w)                            (eq. 8)
    regression: L̂ = ½ [α(x, w) + e^{−α(x, w)} {(m(x) − μ(x, w))² + v(x)}]             (eq. 11)

(Korattikara et al. 2015.) p, or the mean m and the variance v, come from one teacher draw, as in the paper (m = f(x |
θ^s), v = 1/λ_n), or from a whole predictive. Both losses are linear in the teacher's distribution: the expectation over
draws of the loss of one draw is the loss of the mixture of all draws. The minimum over all functions of x is at S = E p
for classes, and at μ = E y, e^α = Var y for regression. Eq. 11 omits ½ log 2π per output, as in the paper.
"""

from jaxtyping import Float
from torch import Tensor


def classification_loss(
    student_log_probs: Float[Tensor, "*row class"], teacher_probs: Float[Tensor, "*row class"]
) -> Float[Tensor, "*row"]:
    """Return eq. 8 for each input.

    Args:
        student_log_probs: log S(y = k | x, w), normalised.
        teacher_probs: p(y = k | x).
    """
    return -(teacher_probs * student_log_probs).sum(-1)


def regression_loss(
    student_mean: Float[Tensor, "*row output"],
    student_log_variance: Float[Tensor, "*row output"],
    teacher_mean: Float[Tensor, "*row output"],
    teacher_variance: Float[Tensor, "*row output"] | float,
) -> Float[Tensor, "*row"]:
    """Return eq. 11 for each input, summed over output columns; all in the same units.

    Args:
        student_mean, student_log_variance: μ and α.
        teacher_mean: m.
        teacher_variance: v, with the noise: 1/λ_n for one draw.
    """
    expected = (teacher_mean - student_mean).square() + teacher_variance  # E (y − μ)² under the teacher
    return 0.5 * (student_log_variance + (-student_log_variance).exp() * expected).sum(-1)

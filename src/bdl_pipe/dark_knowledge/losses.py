"""The student's losses against one teacher draw θ^s: cross-entropies, so that KL's constant is left out.

    classes:    L̂ = −Σ_k p(y = k | x, θ^s) log S(y = k | x, w)                                 (eq. 8)
    regression: L̂ = ½ [α(x, w) + e^{−α(x, w)} {(f(x | θ^s) − μ(x, w))² + 1/λ_n}]                (eq. 11)

(Korattikara et al. 2015.) Averaged over draws, the minimum over all functions of x is at
S = E p(y | x, θ) for classes, and at μ = E f, e^α = Var f + 1/λ_n for regression. Eq. 11 leaves out
½ log 2π per output, as in the paper.
"""

from jaxtyping import Float
from torch import Tensor


def classification_loss(
    student_log_probs: Float[Tensor, "batch class"], teacher_probs: Float[Tensor, "batch class"]
) -> Float[Tensor, " batch"]:
    """Return eq. 8 for each input.

    Args:
        student_log_probs: log S(y = k | x, w), normalised.
        teacher_probs: p(y = k | x, θ^s).
    """
    return -(teacher_probs * student_log_probs).sum(-1)


def regression_loss(
    student_mean: Float[Tensor, "batch output"],
    student_log_variance: Float[Tensor, "batch output"],
    teacher_mean: Float[Tensor, "batch output"],
    noise_precision: float,
) -> Float[Tensor, " batch"]:
    """Return eq. 11 for each input, summed over output columns; all in the same units.

    Args:
        student_mean, student_log_variance: μ and α.
        teacher_mean: f(x | θ^s).
        noise_precision: λ_n of the teacher's likelihood.
    """
    expected = (teacher_mean - student_mean).square() + 1 / noise_precision  # E (y − μ)² under the teacher
    return 0.5 * (student_log_variance + (-student_log_variance).exp() * expected).sum(-1)

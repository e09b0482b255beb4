"""Losses with the gradients, with respect to the coreset's images, of divergences between two posteriors.

D is the data, S the coreset (x̂, ŷ) of n̂ rows, θ the weights; log p(ŷ | x̂, θ) summed over S is f̃(θ), over D f(θ),
and h̃ = ∂f̃/∂x̂. The posteriors are π_D ∝ p(θ) e^f and π_S ∝ p(θ) e^{w f̃}. Each divergence is estimated from draws of
both:

* forward KL, KL(π_D‖π_S):  ∂/∂x̂ = w (E_S[h̃] − E_D[h̃])           (Kim et al. 2022, section 3.2)
* reverse KL, KL(π_S‖π_D):  ∂/∂x̂ = −Cov_S(w h̃, f − w f̃)           (ibid.; needs f only up to a constant)
* contrastive divergence: as for forward KL; the draws of π_S are the ends of short chains on S that start at the draws
  of π_D (Tiwary et al. 2024)
* function space: as for forward KL, with draws of the network's outputs at x̂ (Kim et al. 2023)
* Wasserstein, for two Gaussians with the same isotropic covariance: the squared distance of their means, with the mean
  of π_S differentiated through the steps that lead to it (Kim et al. 2022, section 3.3)

A surrogate is linear in the likelihoods of S, so one backward pass suffices for all draws. The draws of the weights
have no graph, except in the Wasserstein distance. Log-likelihoods are means over rows, so a surrogate's gradient is the
divergence's gradient divided by w n̂, or by w n̂ N for reverse KL.

Deviations: reverse KL's covariance is divided by M − 1 (the published code divides by M, which shrinks it by (M −
1)/M), and the coreset's likelihood has the same augmentation as h̃. The terms of forward KL may share their noise,
which does not change the mean and lowers the variance.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...seeds import Seed


def contrast(at_data: Float[Tensor, " draw"], at_coreset: Float[Tensor, " draw"]) -> Float[Tensor, ""]:
    """Return the surrogate of forward KL, contrastive divergence and the function-space divergence.

    Args:
        at_data: the mean log-likelihood of the coreset's rows under each draw of π_D, with a graph to x̂.
        at_coreset: the mean log-likelihood under draws of π_S, or under the ends of chains.
    """
    return at_coreset.mean() - at_data.mean()


def covariance(coreset: Float[Tensor, " draw"], data: Float[Tensor, " draw"], ratio: float) -> Float[Tensor, ""]:
    """Return the surrogate of reverse KL, divided by N: −Cov_S(f̃/n̂, f/N − ratio·f̃/n̂).

    Args:
        coreset: mean log-likelihood of the coreset's rows under each draw of π_S, M ≥ 2 of them, with a graph to x̂.
        data: mean log-likelihood of a batch of training rows under the same draws.
        ratio: w n̂/N; with 1 the coreset has the data's weight.
    """
    difference = (data - ratio * coreset).detach()
    centred = difference - difference.mean()  # the covariance needs only one centred factor
    return -(centred * coreset).sum() / (len(coreset) - 1)


def distance(end: Float[Tensor, " weight"], target: Tensor, start: Tensor) -> Float[Tensor, ""]:
    """Return ‖θ_S − θ_D‖² over ‖θ_start − θ_D‖², a normalised squared Wasserstein distance.

    Args:
        end: θ_S, with a graph to x̂.
        target: θ_D.
        start: the expert's weights from which the steps to θ_S start.
    """
    return (end - target).square().sum() / (start - target).square().sum()


def function_draws(
    outputs: Float[Tensor, "iterate row class"], draws: int, noise: float, *, rng: Seed
) -> Float[Tensor, "draw row class"]:
    """Draw function values from a Gaussian with the last iterate's outputs as its mean and all iterates' covariance.

    f = f_T + (T − 1)^{−½} Σ_t z_t (f_t − f̄) + σ ε, with z, ε ~ N(0, I): exact draws of N(f_T, C + σ²I), where C is the
    empirical covariance over rows and classes, without forming it.

    Args:
        outputs: logits at the coreset's rows under T ≥ 2 iterates, oldest first, with a graph to x̂.
        draws: M.
        noise: σ.
    """
    count = len(outputs)
    deviations = (outputs - outputs.mean(0)) / (count - 1) ** 0.5
    generator = rng.generator()
    z = torch.randn(draws, count, generator=generator, dtype=outputs.dtype).to(outputs.device)
    drawn = outputs[-1] + torch.einsum("mt,trc->mrc", z, deviations)
    epsilon = torch.randn(drawn.shape, generator=generator, dtype=outputs.dtype).to(outputs.device)
    return drawn + noise * epsilon

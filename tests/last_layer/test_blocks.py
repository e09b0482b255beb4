"""The generative layer with blocks, against dense float64 matrices, torch.distributions and SciPy."""

import numpy as np
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bdl_pipe.last_layer import Generative
from bdl_pipe.last_layer.blocks import BlockGenerative
from bdl_pipe.seeds import Seed
from tests.refusals import refusal

from .cases import perturbed
from .generative_cases import CLASSES, COUNTS, ROWS, draws, mixture

WIDTH, BLOCK, DOF = 6, 3, 4.5
PRIOR = {"prior_variance": 1.7, "wishart_dof": DOF, "wishart_scale": 0.6}
FEATURES, LABELS = 1.5 * draws(ROWS, WIDTH, at="features"), torch.arange(ROWS) % CLASSES
SHARES = (torch.tensor(COUNTS).double() + 1) / (sum(COUNTS) + CLASSES)


def make() -> BlockGenerative:
    return perturbed(BlockGenerative(WIDTH, CLASSES, block=BLOCK, class_counts=COUNTS, **PRIOR))


def dense(diagonal: Tensor, below: Tensor) -> Tensor:
    """The triangular root [h, h] of a log diagonal [h] and of blocks below it, an element at a time."""
    root = diagonal.detach().exp().diag()
    for row in range(WIDTH):
        for column in range(row):
            if row // BLOCK == column // BLOCK:
                root[row, column] = below.detach()[row // BLOCK, row % BLOCK, column % BLOCK]
    return root


def parts(layer: BlockGenerative) -> tuple[Tensor, Tensor, Tensor]:
    """P [k, h, h], S = PPᵀ and Σ = (LLᵀ)⁻¹ [h, h]."""
    spread = torch.stack([dense(m, f) for m, f in zip(layer.log_std, layer.factor, strict=True)])
    noise = dense(layer.log_root_precision, layer.root_precision)
    return spread, spread @ spread.mT, torch.linalg.inv(noise @ noise.T)


def test_the_loss_equals_dense_matrices() -> None:
    """Wrong: Σ for Σ + S in the log-sum-exp, or the diagonals of both alone."""
    layer, counts = make(), torch.tensor(COUNTS).double() + 1
    mean, (_, spread, noise) = layer.mean.detach(), parts(layer)

    def bound(spread: Tensor, noise: Tensor, widened: Tensor) -> float:
        joint = MultivariateNormal(mean, widened).log_prob(FEATURES[:, None]) + counts.log()
        fit = MultivariateNormal(mean[LABELS], noise).log_prob(FEATURES) + counts[LABELS].log()
        trace = torch.stack([torch.trace(torch.linalg.inv(noise) @ spread[y]) for y in LABELS])
        return float((fit - trace / 2 - joint.logsumexp(1)).mean())

    exact = bound(spread, noise, noise + spread)
    prior = MultivariateNormal(torch.zeros(WIDTH).double(), 1.7 * torch.eye(WIDTH).double())
    kl = float(kl_divergence(MultivariateNormal(mean, spread), prior).sum())
    blocks = [noise[:BLOCK, :BLOCK].numpy(), noise[BLOCK:, BLOCK:].numpy()]
    log_prior = sum(scipy.stats.invwishart(DOF, 0.6 * np.eye(BLOCK)).logpdf(block) for block in blocks)
    values = [layer.bound(FEATURES, LABELS), layer.kl(), layer.noise_log_prior()]
    np.testing.assert_allclose(torch.stack(values).detach(), [exact, kl, log_prior], rtol=1e-11)
    only = spread.diagonal(dim1=1, dim2=2).diag_embed(), noise.diagonal().diag()
    for wrong in (bound(spread, noise, noise.expand_as(spread)), bound(*only, sum(only))):
        assert abs(wrong - exact) > 0.05


def test_predictions_and_draws_equal_dense_matrices() -> None:
    layer = make()
    root, spread, noise = parts(layer)
    joint = mixture(FEATURES, layer.mean.detach(), noise + spread, SHARES)
    predictive = layer.predict(FEATURES)
    np.testing.assert_allclose(predictive.mean.detach(), joint / joint.sum(1, keepdims=True), rtol=1e-9)
    before = scipy.stats.multivariate_normal(np.zeros(WIDTH), 1.7 * np.eye(WIDTH) + noise.numpy()).logpdf(FEATURES)
    np.testing.assert_allclose(layer.log_density(FEATURES).detach(), np.log(joint.sum(1)) - before, atol=1e-10)
    normal = torch.randn(7, CLASSES, WIDTH, generator=Seed(3).generator()).double()
    means = layer.mean.detach() + torch.einsum("kij,nkj->nki", root, normal)
    log_joint = MultivariateNormal(means[:, None], noise).log_prob(FEATURES[:, None]) + SHARES.log()
    drawn = layer.drawn_log_probs(FEATURES[None], 7, Seed(3))[:, 0]
    torch.testing.assert_close(drawn.detach(), log_joint.log_softmax(-1), rtol=1e-9, atol=1e-9)


def test_the_exact_posterior_equals_dense_matrices() -> None:
    layer = make()
    precision = torch.linalg.inv(parts(layer)[2])
    layer.condition([(FEATURES[:9], LABELS[:9]), (FEATURES[9:], LABELS[9:])])
    _, spread, _ = parts(layer)
    for k in range(CLASSES):
        rows = FEATURES[k == LABELS]
        covariance = torch.linalg.inv(torch.eye(WIDTH).double() / 1.7 + len(rows) * precision)
        torch.testing.assert_close(spread[k], covariance, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(layer.mean[k].detach(), covariance @ precision @ rows.sum(0), rtol=1e-9, atol=1e-10)


def test_the_start_is_the_diagonal_layers_and_wrong_blocks_are_refused() -> None:
    options = {"class_counts": COUNTS, **PRIOR}
    plain, blocks = Generative(WIDTH, CLASSES, **options), BlockGenerative(WIDTH, CLASSES, block=2, **options)
    rows = FEATURES.float()
    torch.testing.assert_close(blocks.predict(rows).log_probs, plain.predict(rows).log_probs)
    for block, rule in {4: "block must divide the 6 features, got 4", 6: "wishart_dof must be > 5"}.items():
        assert refusal(BlockGenerative, WIDTH, CLASSES, block=block, **options).startswith(f"ConfigError: {rule}")

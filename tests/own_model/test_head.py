"""Heads of users' models: without a bias, with a hook, with a forward pass of their own, tied, under weight norm."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bdl_pipe import ModulePosterior, UserError, bayesianise
from bdl_pipe.own_model.start import CHAINS, STUDENT, able
from bdl_pipe.posterior import NetworkDraws
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.linearised import LinearisedLaplace
from tests.resuming import Watched

from .models import Answering, text_loader, texts

ROWS, WIDTH, CLASSES = 200, 6, 3


def data(columns: int = 0) -> TensorDataset:
    """Return rows of two features with their classes or, with ``columns``, with targets in units of their own."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 2, generator=generator)
    noise = torch.randn(ROWS, max(columns, CLASSES), generator=generator)
    if not columns:
        return TensorDataset(x, (torch.stack([x[:, 0], x[:, 1], -x.sum(1)], 1) + noise).argmax(1))
    return TensorDataset(x, 3 + x[:, :1] + 0.3 * noise[:, :columns])


def loader(columns: int = 0) -> DataLoader[Any]:
    return DataLoader(data(columns), batch_size=50)


def net(outputs: int = CLASSES, head: nn.Module | None = None) -> nn.Sequential:
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), head or nn.Linear(WIDTH, outputs, bias=False))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 2)
    return model


def dense(model: nn.Sequential, precision: float | None, *, bias: bool) -> tuple[float, Tensor]:
    """Return τ and the covariance of the head's row-major weights, in float64, by the definition.

    The curvature is K-FAC's product G ⊗ A, with G = Σ_n (diag p − ppᵀ) and A the mean of φφᵀ.
    Without ``precision``, τ is the maximum of the evidence on a grid of 4,000 values.
    """
    rows, _ = data().tensors
    with torch.no_grad():
        features = model[:2](rows).double()
        p = model(rows).double().softmax(-1)
    if bias:
        features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], 1)
    g = (p.diag_embed() - p[:, :, None] * p[:, None]).sum(0)
    curvature = torch.kron(g, features.T @ features / len(features))
    weight = model[2].weight.detach().double()
    squared = float(weight.square().sum())
    if precision is None:
        eigenvalues = torch.linalg.eigvalsh(curvature).clamp_min(0)
        grid = torch.logspace(-2, 2, 4000, dtype=torch.float64)
        evidence = 0.5 * (len(eigenvalues) * grid.log() - grid * squared)
        evidence -= 0.5 * (eigenvalues[:, None] + grid).log().sum(0)
        precision = float(grid[evidence.argmax()])
    eye = torch.eye(len(curvature), dtype=torch.float64)
    return precision, torch.linalg.inv(curvature + precision * eye)


def draws(posterior: ModulePosterior) -> dict[str, Tensor]:
    assert isinstance(posterior.inner, NetworkDraws)
    return posterior.inner.weights


def test_the_laplace_posterior_of_a_head_without_bias_is_the_dense_one() -> None:
    """The covariance of the weights, and of the logits at two rows; the one with a bias is 8 % off or more."""
    model, x = net(), data().tensors[0][:2]
    config = {"prior_precision": 2.0, "draws": 3, "predictive": "linearised"}
    posterior = bayesianise(model, "kfac_laplace", loader(), config=config).inner
    assert isinstance(posterior, LinearisedLaplace)
    layer = posterior.layers["head"]
    root = torch.kron(layer.output_vectors, layer.input_vectors).double() * layer.scale.double().flatten()
    _, meant = dense(model, 2.0, bias=False)
    torch.testing.assert_close(root @ root.T, meant, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        jacobian = torch.kron(torch.eye(CLASSES), model[:2](x)).double().view(CLASSES, 2, -1)  # [class, row, weight]
    of_logits = torch.einsum("crw,wv,dsv->rcsd", jacobian, meant, jacobian).reshape(6, 6)
    covariance = posterior.functions(packed(x)[None]).covariance[0]
    torch.testing.assert_close(covariance.double(), of_logits, rtol=1e-3, atol=1e-5)
    _, wrong = dense(model, 2.0, bias=True)
    kept = torch.arange(CLASSES * (WIDTH + 1)).view(CLASSES, -1)[:, :-1].flatten()
    assert float((wrong[kept][:, kept] - meant).norm() / meant.norm()) > 0.08


def packed(rows: Tensor) -> Tensor:
    return rows[:, None, None]


def test_the_evidence_of_a_head_without_bias_counts_its_own_weights() -> None:
    model, report = net(), Watched()
    bayesianise(model, "kfac_laplace", loader(), report=report)
    precision = [metrics["prior_precision"] for metrics in report.seen if "prior_precision" in metrics][-1]
    (right, _), (wrong, _) = (dense(model, None, bias=bias) for bias in (False, True))
    assert precision == pytest.approx(right, rel=2e-3) and abs(precision / wrong - 1) > 0.01


@pytest.mark.parametrize("columns", [0, 2])
def test_no_method_makes_a_bias_that_the_head_lacks(columns: int) -> None:
    """Each draw, snapshot or fitted network has a constant bias: zero or, where targets are standardised, their shift.

    Inducing weights that start afresh have zero: the mean of the targets.
    """
    model, failed = net(columns or CLASSES), []
    task = {"task": "regression"} if columns else {}
    for method in able():
        if ("regression" if columns else "classification") not in METHODS[method].tasks:
            continue
        options: dict[str, Any] = {} if method in ("deterministic", "kfac_laplace") else {"epochs": 2}
        if method == STUDENT:
            options["teacher"] = bayesianise(model, "deterministic", loader(columns), **task)
        if method == CHAINS:
            options["chains"] = 1
        posterior = bayesianise(model, method, loader(columns), **task, **options)
        tensors = posterior.inner.state().tensors
        biases = [value for name, value in tensors.items() if name.endswith("head.bias")]
        meant = torch.zeros(CLASSES)
        if columns:
            assert posterior.transform.shift is not None and posterior.transform.scale is not None
            meant = (-posterior.transform.shift / posterior.transform.scale).float()
        for bias in biases:
            means = bias[..., : len(meant)]
            afresh = method.endswith("_u") and not means.any()
            if not afresh and not torch.allclose(means, meant.expand_as(means), atol=1e-6):
                failed.append(f"{method}: {means}")
        if any("head/bias" in name for name in tensors):
            failed.append(f"{method}: a distribution of the bias")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("columns", [0, 2])
def test_a_bayesian_last_layer_starts_at_the_model_with_its_bias(columns: int, bias: bool) -> None:
    """After steps of almost no length its mean is the model; without the bias it would be off by as much."""
    head = nn.Linear(WIDTH, columns or CLASSES, bias=bias)
    model = net(head=head)
    if bias:
        with torch.no_grad():
            head.bias += torch.arange(float(len(head.bias))) + 2
    options: dict[str, Any] = {"task": "regression", "held_out": 0} if columns else {}
    method = "vbll" if columns else "d_vbll"
    posterior = bayesianise(model, method, loader(columns), epochs=1, lr=1e-9, **options)
    x = data(columns).tensors[0]
    with torch.no_grad():
        meant = model(x)
        mean = (
            posterior.predict(x).mean if columns else posterior.inner.last_layer(x[:, None, None], rng=Seed(0)).logits
        )
    torch.testing.assert_close(mean, meant.to(mean.dtype), rtol=1e-4, atol=1e-4)


class Cosine(nn.Linear):
    """A linear layer whose features and weights have length 1."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 8 * F.linear(F.normalize(inputs, dim=-1), F.normalize(self.weight, dim=-1))


@pytest.mark.parametrize("kind", ["cosine", "hook", "scale"])
def test_a_head_that_is_not_plainly_linear_is_refused(kind: str) -> None:
    head = Cosine(WIDTH, CLASSES, bias=False) if kind == "cosine" else nn.Linear(WIDTH, CLASSES)
    if kind == "hook":
        head.register_forward_hook(lambda layer, inputs, outputs: 3 * outputs)
    model = net(head=head)
    if kind == "scale":
        model.append(nn.Softmax(-1))
    with pytest.raises(UserError, match="must be the last layer of the model and linear"):
        bayesianise(model, "kfac_laplace", loader())


def test_a_head_under_weight_norm_is_used_with_its_effective_weights() -> None:
    plain = net(head=nn.Linear(WIDTH, CLASSES))
    normed = net(head=nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, CLASSES)))
    with torch.no_grad():
        plain[0].weight.copy_(normed[0].weight), plain[0].bias.copy_(normed[0].bias)
        plain[2].weight.copy_(normed[2].weight), plain[2].bias.copy_(normed[2].bias)
    x = data().tensors[0]
    one, other = (bayesianise(m, "kfac_laplace", loader()).predict(x).mean for m in (plain, normed))
    torch.testing.assert_close(one, other)


def test_one_logit_with_or_without_a_sigmoid_has_the_posterior_of_logistic_regression(tmp_path: Path) -> None:
    """The variance of z by Laplace's approximation of one logit, in float64; with τ for τ/2 it is another one."""
    model, x, features = net(1), data().tensors[0], net(1)[:2]
    y = (x[:, :1] + x[:, 1:] > 0).float()
    config = {"prior_precision": 2.0, "draws": 3, "predictive": "linearised"}
    for last, targets in ((nn.Identity(), y[:, 0].long()), (nn.Sigmoid(), y)):
        whole = nn.Sequential(*model, last)
        posterior = bayesianise(whole, "kfac_laplace", [(x, targets)], config=config)
        torch.testing.assert_close(
            bayesianise(whole, "deterministic", [(x, targets)]).predict(x).mean[:, 1:], model(x).sigmoid().detach()
        )
        phi = features(x).detach().double()
        p = model(x).detach().double().sigmoid()
        curvature = (p * (1 - p)).sum() * phi.T @ phi / ROWS  # K-FAC: the product of means
        variances = [
            phi[:5] @ torch.linalg.inv(curvature + t * torch.eye(WIDTH).double()) @ phi[:5].T for t in (1.0, 2.0)
        ]
        assert isinstance(posterior.inner, LinearisedLaplace)
        covariance = posterior.inner.functions(packed(x[:5])[None]).covariance[0].double().view(5, 2, 5, 2)
        z = covariance[:, 1, :, 1] + covariance[:, 0, :, 0] - covariance[:, 0, :, 1] - covariance[:, 1, :, 0]
        torch.testing.assert_close(z, variances[0], rtol=1e-4, atol=1e-6)
        assert (z - variances[1]).abs().max() > 0.01
        posterior.save(tmp_path / type(last).__name__)
        again = ModulePosterior.load(tmp_path / type(last).__name__, whole)
        assert torch.equal(again.predict(x).mean, posterior.predict(x).mean)


def test_a_convolution_with_groups_keeps_its_weights_and_says_so() -> None:
    """The curvature of a layer with groups is a block for each group, and not a Kronecker product."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4 * 4, 2))
    rows = TensorDataset(torch.randn(40, 4, 6, 6), torch.arange(40) % 2)
    posterior = bayesianise(model, "kfac_laplace", DataLoader(rows, batch_size=20), config={"layers": "all"})
    assert any("module.0.weight" in note or "0.weight" in note for note in posterior.notes)


NOTE = "the posterior is over a copy of lm_head.weight; shared.weight, which is the same weight, is not changed"


class Unread:
    """A loader that must not be read."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the rows were read")


def model(*, tied: bool = True) -> nn.Module:
    """Return a model; if it is not tied, its head has a copy of the embedding's weight."""
    torch.manual_seed(0)
    model = Answering()
    if not tied:
        model.lm_head.weight = nn.Parameter(model.shared.weight.detach().clone())
    return model


def tensors(found: ModulePosterior) -> dict[str, Tensor]:
    return dict(found.inner.state().tensors)


def test_a_tied_head_has_the_posterior_of_an_untied_copy_and_a_note(tmp_path: Path) -> None:
    inputs, _ = texts(20, 1)
    tied, before = model(), {name: value.clone() for name, value in model().state_dict().items()}
    answer, meant = (bayesianise(of, "kfac_laplace", text_loader(60)) for of in (tied, model(tied=False)))
    assert tensors(answer).keys() == tensors(meant).keys()
    assert all(torch.equal(value, tensors(meant)[name]) for name, value in tensors(answer).items())
    assert torch.equal(answer.predict(inputs).mean, meant.predict(inputs).mean)
    assert NOTE in answer.notes and NOTE not in meant.notes
    assert all(torch.equal(value, before[name]) for name, value in tied.state_dict().items())
    assert tied.lm_head.weight is tied.shared.weight
    assert answer.predict(inputs).mutual_information().max() > 1e-3  # draws of the head differ, the embedding does not
    drawn, embedding = dict(answer.trunk.named_buffers()), tied.shared.weight.detach()
    for name in ("module.shared.weight", "module.encoder.embed_tokens.weight"):
        assert name not in drawn or torch.equal(drawn[name], embedding), name
    assert any(torch.equal(value, embedding) for value in drawn.values())
    answer.save(tmp_path / "mine")
    again = ModulePosterior.load(tmp_path / "mine", tied)
    assert torch.equal(again.predict(inputs).mean, answer.predict(inputs).mean) and again.notes == answer.notes


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((name, {"epochs": 1}) for name in ("deterministic", "vbll", "sgmcmc", "ffg_u")),
        ("kfac_laplace", {"config": {"layers": "all"}}),
    ],
)
def test_methods_that_change_the_trunk_refuse_tied_weights_before_they_read_a_row(method: str, options: Any) -> None:
    rule = r"^model must have one name for each weight, except with kfac_laplace over the last layer without epochs, "
    same = "got 'shared.weight and encoder.embed_tokens.weight, which are the same weight'$"
    with pytest.raises(UserError, match=rule + same):
        bayesianise(model(), method, Unread(), **options)

"""TabM against its formula written out, against separate networks, and against the loss of the mixture."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor
from torch.distributions import Categorical, Normal
from torch.func import functional_call

from bdl_pipe.artifacts import unstack
from bdl_pipe.baselines.tabm import SharedLinear, Tabm, TabmConfig, fit
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.predictive import Gaussian
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training.likelihood import least_head_nll
from tests.baselines.cases import DECAYED, LEARN, fitted, table
from tests.conftest import make_tiny_images
from tests.last_layer.cases import draw, perturbed
from tests.resuming import same_bits

CONFIG = TabmConfig(MlpConfig("mlp", (6, 5)), LEARN, members=3)
NETWORKS = {
    "relu": MlpConfig("mlp", (6, 5)),
    "leaky": MlpConfig("mlp", (6,), "leaky_relu"),
    "tanh": MlpConfig("mlp", (4, 6, 5), "tanh"),
    "frequencies": MlpConfig("mlp", (6, 5), "mish", frequencies=(0.1, 0.4)),
}
K = 3


def spec_of(network: MlpConfig, task: str = "regression") -> NetworkSpec:
    """Two outputs from five inputs with a variance floor, or three classes of 8×8 images."""
    if task == "regression":
        return NetworkSpec(network, (5,), 2, "gaussian_head", variance_floor=0.01)
    return NetworkSpec(network, (1, 8, 8), 3, "categorical")


def shaken(spec: NetworkSpec) -> Tabm:
    """A learner in float64 whose scalings and biases are no ones and zeros."""
    return perturbed(Tabm(spec, K, Seed(5)), 0.25, seed=1)


def rows(spec: NetworkSpec) -> tuple[Tensor, Tensor]:
    targets = torch.arange(7) % 3 if spec.likelihood == "categorical" else draw(3, 7, spec.outputs)
    return draw(2, 7, *spec.input_shape), targets


def nlls(spec: NetworkSpec, outputs: Tensor, targets: Tensor) -> Tensor:
    """−log p of each member and row by torch's distributions, [member, row]."""
    if spec.likelihood == "categorical":
        return -Categorical(logits=outputs).log_prob(targets)
    mean, free = outputs.chunk(2, -1)
    return -Normal(mean, (0.01 + torch.log1p(free.exp())).sqrt()).log_prob(targets).sum(-1)


cases = pytest.mark.parametrize(
    "spec",
    [*(spec_of(network) for network in NETWORKS.values()), spec_of(NETWORKS["relu"], "classification")],
    ids=[*NETWORKS, "images"],
)


def test_a_shared_layer_equals_its_formula_row_by_row() -> None:
    layer = perturbed(SharedLinear(torch.nn.Linear(4, 6), K))
    for inputs in (draw(1, 7, 4), draw(2, K, 7, 4)):
        outputs = layer(inputs)
        assert outputs.shape == (K, 7, 6)
        for m, x in enumerate(inputs.expand(K, 7, 4)):
            by_row = [layer.s[m] * (layer.weight @ (layer.r[m] * row)) + layer.bias[m] for row in x]
            torch.testing.assert_close(outputs[m], torch.stack(by_row), atol=1e-12, rtol=0)


@cases
def test_each_member_predicts_as_an_ordinary_network(spec: NetworkSpec) -> None:
    """Control: with the scalings left out of one exported weight the outputs differ."""
    learner, (inputs, _) = shaken(spec), rows(spec)
    plain, outputs_of_members = spec.build(Seed(0)).double(), learner.outputs(inputs)
    members = unstack(learner.draws())
    assert members[0].keys() == plain.state_dict().keys()
    for m, weights in enumerate(members):
        torch.testing.assert_close(
            outputs_of_members[m], functional_call(plain, weights, (inputs,)), atol=1e-12, rtol=0
        )
    unscaled = members[0] | {"trunk." + learner.shared()[0][0] + ".weight": learner.shared()[0][1].weight}
    assert (outputs_of_members[0] - functional_call(plain, unscaled, (inputs,))).abs().max() > 1e-3
    outputs = torch.stack([functional_call(plain, weights, (inputs,)) for weights in members])
    assert torch.equal(NetworkDraws(spec, learner.draws()).predict(inputs).mean, spec.predictive(outputs).mean)


@cases
def test_the_gradient_follows_from_separate_networks_by_the_chain_rule(spec: NetworkSpec) -> None:
    """The chain rule is applied to the gradients of k networks, each of its own loss divided by k."""
    learner, (inputs, targets) = shaken(spec), rows(spec)
    learner(inputs, targets, 7, {}).backward()
    plain, weights = spec.build(Seed(0)).double(), unstack(learner.draws())
    separate = [{name: w.clone().requires_grad_() for name, w in member.items()} for member in weights]
    for member in separate:
        outputs = functional_call(plain, member, (inputs,))
        (nlls(spec, outputs[None], targets).mean() / K).backward()

    def gradients(name: str) -> Tensor:
        return torch.stack([member[name].grad for member in separate])  # type: ignore[misc]

    close: dict[str, Any] = {"atol": 1e-12, "rtol": 1e-10}
    for place, layer in learner.shared():
        of_weight = gradients(f"trunk.{place}.weight")
        expected = {
            "weight": torch.einsum("koi,ko,ki->oi", of_weight, layer.s, layer.r),
            "r": torch.einsum("koi,oi,ko->ki", of_weight, layer.weight, layer.s),
            "s": torch.einsum("koi,oi,ki->ko", of_weight, layer.weight, layer.r),
            "bias": gradients(f"trunk.{place}.bias"),
        }
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], **close)
    torch.testing.assert_close(learner.head_weight.grad, gradients("head.weight"), **close)
    torch.testing.assert_close(learner.head_bias.grad, gradients("head.bias"), **close)


@cases
def test_the_loss_averages_member_losses_and_the_predictive_is_their_mixture(spec: NetworkSpec) -> None:
    learner, (inputs, targets) = shaken(spec), rows(spec)
    each = nlls(spec, learner.outputs(inputs), targets)
    mixture = -(torch.logsumexp(-each, 0) - math.log(K)).mean()
    torch.testing.assert_close(learner(inputs, targets, 7, {}), each.mean(), atol=1e-12, rtol=0)
    predictive = learner.predict(inputs, rng=Seed(0))
    torch.testing.assert_close(-predictive.log_prob(targets).mean(), mixture, atol=1e-12, rtol=0)
    assert each.mean() - mixture > 1e-2, "one would pass for the other"


def test_members_differ_at_the_start_only_in_input_signs_and_last_layers() -> None:
    learner = Tabm(spec_of(NETWORKS["tanh"]), K, Seed(5))
    layers = [layer for _, layer in learner.shared()]
    assert len(layers) == 3
    assert set(layers[0].r.unique().tolist()) == {-1.0, 1.0}
    assert all((layer.r == 1).all() for layer in layers[1:])
    assert all((layer.s == 1).all() and (layer.bias == 0).all() for layer in layers)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(layers[0].r[one], layers[0].r[other])
        assert not torch.equal(learner.head_weight[one], learner.head_weight[other])
    same, another = (Tabm(learner.spec, K, Seed(seed)).state_dict() for seed in (5, 6))
    assert all(torch.equal(value, same[name]) for name, value in learner.state_dict().items())
    for name in ("trunk.1.weight", "trunk.1.r", "head_weight"):
        assert not torch.equal(same[name], another[name])


@pytest.mark.parametrize(("share", "right"), [(0.5, True), (0.45, False)])
def test_both_signs_are_equally_likely(share: float, right: bool) -> None:
    """An exact two-sided binomial test of 10,000 signs at level 1e-6; the control must be rejected."""
    learner = Tabm(NetworkSpec(MlpConfig("mlp", (2,)), (100,), 1, "gaussian_head"), 100, Seed(0))
    signs = learner.shared()[0][1].r
    assert (binomtest(int((signs > 0).sum()), signs.numel(), share).pvalue > 1e-6) == right


def test_weight_decay_shrinks_shared_and_head_weights_but_no_scaling() -> None:
    spec = NetworkSpec(CONFIG.network, (4,), 1, "gaussian_head")
    start = Tabm(spec, K, Seed(1).fold(0, "weights"))
    state = fitted(fit, dataclasses.replace(CONFIG, training=DECAYED)).tensors
    before = start.draws()
    shrunk = state["trunk.1.weight"] / before["trunk.1.weight"]
    assert shrunk.max() < 1 - 1e-3, "the shared weight decays"
    torch.testing.assert_close(shrunk, shrunk.flatten()[0].expand_as(shrunk), atol=1e-5, rtol=0)
    factor = state["head.weight"] / before["head.weight"]
    # a decayed scaling would shrink the weights of the trunk more than the head's
    torch.testing.assert_close(factor, shrunk.flatten()[0].expand_as(factor), atol=1e-5, rtol=0)


def test_each_member_draws_its_own_dropout_masks() -> None:
    """Members that are equal except for their masks have different outputs."""
    learner = Tabm(spec_of(MlpConfig("mlp", (50,), dropout=0.5)), K, Seed(5)).train()
    with torch.no_grad():
        learner.shared()[0][1].r.fill_(1)
        learner.head_weight.copy_(learner.head_weight[:1].expand_as(learner.head_weight))
    inputs = rows(learner.spec)[0].float()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        outputs = learner.outputs(inputs)
    assert not torch.allclose(outputs[0], outputs[1])
    steady = learner.eval().outputs(inputs)
    torch.testing.assert_close(steady[0], steady[1])
    config = dataclasses.replace(CONFIG, network=MlpConfig("mlp", (6,), dropout=0.5))
    assert same_bits(fitted(fit, config), fitted(fit, config))
    with pytest.raises(ConfigError, match=r"^network\.dropout must be 0 if several members are trained as one"):
        fit([table(0), table(1)], [{}] * 2, config, rngs=[Seed(0), Seed(1)], report=Silent())


@pytest.mark.parametrize("floor", [None, 0.01])
def test_the_noise_of_held_out_rows_is_the_best_of_a_grid(floor: float | None) -> None:
    """The noise of a mixture of three Gaussians, scored with torch's Normal; the rows come in two parts."""
    generator = torch.Generator().manual_seed(3)
    mean, free, targets = (
        torch.randn(*shape, generator=generator).double() for shape in ((K, 40, 1),) * 2 + ((40, 1),)
    )

    def variance(shift: float, slope: float) -> Tensor:
        moved = shift + slope * (free - 1.5)
        return moved.exp() if floor is None else floor + torch.log1p(moved.exp())

    def nll(shift: float, slope: float) -> float:
        each = Normal(mean, variance(shift, slope).sqrt()).log_prob(targets).sum(-1)
        return -float((torch.logsumexp(each, 0) - math.log(K)).mean())

    parts, trained = [slice(0, 25), slice(25, 40)], variance(0, 1)
    score, shift, slope = least_head_nll([(Gaussian(mean[:, p], trained[:, p]), targets[p]) for p in parts], floor)
    best = min(nll(s, k) for s in torch.linspace(-2, 4, 301).tolist() for k in torch.linspace(0, 1, 51).tolist())
    assert score == pytest.approx(nll(shift, slope), abs=1e-9) and abs(shift) > 0.05
    assert best - 1e-3 < score <= best + 1e-6


@torch.no_grad()
def test_held_out_noise_maps_the_raw_variances_of_all_members_by_one_line() -> None:
    spec = spec_of(NETWORKS["relu"])
    learner, (inputs, targets) = shaken(spec), rows(spec)
    before = learner.outputs(inputs)
    score, estimate = learner.estimated([(learner.predict(inputs, rng=Seed(0)), targets)])
    learner.load_state_dict(learner.with_estimated(learner.state_dict(), estimate))
    after, line = learner.outputs(inputs), estimate["shift"].double() + estimate["slope"].double() * before[..., 2:]
    torch.testing.assert_close(after[..., :2], before[..., :2], atol=1e-12, rtol=0)
    torch.testing.assert_close(after[..., 2:], line, atol=1e-6, rtol=0)
    assert -float(learner.predict(inputs, rng=Seed(0)).log_prob(targets).mean()) == pytest.approx(score, abs=1e-6)


def test_a_variance_floor_of_classes_is_refused() -> None:
    floored = dataclasses.replace(CONFIG, variance_floor=0.1)
    with pytest.raises(ConfigError, match=r"^variance_floor must be null: classes have no variance, got 0.1"):
        fit([make_tiny_images()], [{}], floored, rngs=[Seed(0)], report=Silent())

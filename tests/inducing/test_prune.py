"""Pruned networks: the kept entries, the stored numbers, and equality with dense networks that have zeros."""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.special import expit
from torch import nn

from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.inducing import Bayesian, bayesianize, outputs, prune, stored
from bdl_pipe.inducing.layers import Inducing
from bdl_pipe.inducing.pruning import kept_counts
from bdl_pipe.inducing.sparse import Kept
from bdl_pipe.inducing.weightspace import FactorisedWeights
from bdl_pipe.seeds import Seed

from .cases import UNIT, conv_net, five_layers, mlp, normal, one_noise, shaken

PRUNED = (*UNIT, "ffg_w")


def network(kind: str, **options: object) -> Bayesian:
    net = bayesianize(conv_net(), kind, rows=3, cols=4, **options)  # type: ignore[arg-type]
    return shaken(net)


def layers(net: Bayesian) -> list[tuple[Inducing | FactorisedWeights, bool]]:
    """Each distribution and whether its last column is a bias that stays."""
    shared = [] if net.shared is None else [(net.shared.weights, False)]
    return [(layer, net.places[key].bias) for key, layer in net.layers.items()] + shared


def dense_scores(net: Bayesian) -> list[np.ndarray]:
    """The scores by which entries are removed, for each matrix in turn, from the dense parameters."""
    parts = []
    for layer, bias in layers(net):
        if isinstance(layer, Inducing):
            parts += [np.abs(z.detach().numpy()) for z in (layer.z_out, layer.z_in)]
        else:
            score = np.abs(layer.mean.detach().numpy()) / (0.1 * expit(layer.free_sd.detach().numpy()))
            parts.append(score[:, :-1] if bias else score)
    return parts


def masks(net: Bayesian) -> list[np.ndarray]:
    """The masks of the kept entries of a pruned network, without biases."""
    parts = []
    for layer, bias in layers(net):
        inducing = isinstance(layer, Inducing)
        for each in (layer.kept_out, layer.kept_in) if inducing else (layer.kept,):
            mask = each(torch.ones(each.count)).numpy() > 0
            assert inducing or not bias or mask[:, -1].all()
            parts.append(mask[:, :-1] if bias and not inducing else mask)
    return parts


def with_zeros(net: Bayesian, pruned: Bayesian) -> Bayesian:
    """The dense network with 0, and no deviation, where ``pruned`` has no entry."""
    dense = copy.deepcopy(net)
    for (layer, _), (small, _) in zip(layers(dense), layers(pruned), strict=True):
        if isinstance(layer, Inducing):
            layer.z_out = nn.Parameter(layer.z_out.detach() * small.kept_out(torch.ones(small.kept_out.count)))
            layer.z_in = nn.Parameter(layer.z_in.detach() * small.kept_in(torch.ones(small.kept_in.count)))
        else:
            mask = small.kept(torch.ones(small.kept.count)) > 0
            layer.mean = nn.Parameter(torch.where(mask, layer.mean.detach(), 0.0))
            layer.free_sd = nn.Parameter(torch.where(mask, layer.free_sd.detach(), -torch.inf))
    return dense


@pytest.mark.parametrize("share", [0.0, 0.02, 0.03, 0.3, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("shape", [(5, 7), (8, 16), (1, 1)])
def test_a_mask_is_stored_in_the_smaller_form_and_restores_its_values(shape: tuple[int, int], share: float) -> None:
    mask = np.random.default_rng(0).random(shape) < share
    matrix = normal(*shape)
    kept = Kept(torch.from_numpy(mask))
    bits = np.packbits(mask, bitorder="little")
    numbers = np.flatnonzero(mask).astype(np.int32)
    assert kept.packed.nbytes == min(bits.nbytes, numbers.nbytes) and kept.count == mask.sum()
    assert np.array_equal(kept.packed.numpy(), bits if bits.nbytes <= numbers.nbytes else numbers)
    values = kept.of(matrix)
    assert np.array_equal(values.numpy(), matrix.numpy()[mask])
    assert np.array_equal(kept(values).numpy(), np.where(mask, matrix.numpy(), 0))


@pytest.mark.parametrize(
    ("kind", "joint", "share"),
    [(k, False, 0.5) for k in PRUNED] + [(k, True, 0.9) for k in UNIT] + [("ffg_u", False, 0.1)],
)
def test_the_entries_of_least_score_in_the_whole_network_are_removed(kind: str, joint: bool, share: float) -> None:
    net = network(kind, shared=(2, 3) if joint else None)
    pruned = prune(net, share)
    scores = dense_scores(net)
    flat = np.concatenate([s.ravel() for s in scores])
    kept = int((1 - Fraction(str(share))) * len(flat))
    truth = np.zeros(len(flat), bool)
    truth[np.argsort(-flat, kind="stable")[:kept]] = True
    assert np.array_equal(np.concatenate([m.ravel() for m in masks(pruned)]), truth)
    by_layer = [s > np.quantile(s, share) for s in scores]
    assert any(not np.array_equal(a, b) for a, b in zip(masks(pruned), by_layer, strict=True))
    dense = dict(net.named_parameters())
    removed = sum(p.numel() for p in dense.values()) - sum(p.numel() for p in pruned.parameters())
    assert removed == (len(flat) - kept) * (2 if kind == "ffg_w" else 1)
    assert stored(net) == sum(p.numel() for p in dense.values()), "the given network is untouched"


def test_the_first_of_equal_entries_are_kept() -> None:
    net = bayesianize(mlp(), rows=2, cols=2)
    with torch.no_grad():
        for layer, _ in layers(net):
            layer.z_out.fill_(-1.0)
            layer.z_in.fill_(1.0)
    flat = np.concatenate([m.ravel() for m in masks(prune(net, 0.5))])
    assert flat.tolist() == [True] * (len(flat) // 2) + [False] * (len(flat) - len(flat) // 2)


def test_weight_space_and_inducing_layers_each_lose_the_same_share() -> None:
    kinds = {"0": {"kind": "ffg_w"}, "2": {"kind": "fcg_w"}, "*": {"kind": "ffg_u", "rows": 2, "cols": 3}}
    net = shaken(bayesianize(five_layers(), kinds))
    pruned = prune(net, 0.25)
    lost = {k: sum(p.numel() for p in layer.parameters()) for k, layer in net.layers.items()}
    for key, layer in pruned.layers.items():
        lost[key] -= sum(p.numel() for p in layer.parameters())
    assert lost["2"] == 0 and lost["0"] == 2 * math.ceil(108 / 4)
    z = sum(layer.z_out.numel() + layer.z_in.numel() for layer in net.layers.values() if isinstance(layer, Inducing))
    assert sum(lost[k] for k in ("4", "6", "8")) == math.ceil(z / 4)


@pytest.mark.parametrize("kind", PRUNED)
def test_removing_one_entry_changes_outputs_little_and_keeping_all_changes_none(kind: str) -> None:
    net = network(kind).eval()
    inputs = normal(4, 3, 6, 6)
    pruned = prune(net, 1e-9)  # removes only the entry of least score
    assert stored(net) - stored(pruned) == (2 if kind == "ffg_w" else 1)
    noise = one_noise(net)
    torch.testing.assert_close(pruned(inputs, noise), net(inputs, noise), atol=0.02, rtol=0.02)
    for layer, _ in layers(net):
        shapes = {name: score.shape for name, score in layer.importance().items()}
        layer.keep({name: torch.ones(shape, dtype=torch.bool) for name, shape in shapes.items()})
    assert torch.equal(net(inputs, noise), network(kind).eval()(inputs, noise)), "all kept: equal to the bit"


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("kind", [*PRUNED, "joint"])
def test_a_pruned_network_equals_the_dense_network_with_zeros(kind: str, local: bool) -> None:
    net = network("ffg_u", shared=(2, 3)) if kind == "joint" else network(kind)
    pruned, inputs, compared = prune(net, 0.6), normal(5, 3, 6, 6), 0
    dense = with_zeros(net, pruned)
    noise = {k: v[0] for k, v in net.draw(1, Seed(3).generator(), inputs if local else None).items()}
    for name, mean in dense.centre().items():
        assert torch.equal(pruned.centre()[name], mean)
    both = pruned(inputs, noise), dense(inputs, noise)
    assert torch.equal(*both) and not torch.equal(both[0], net(inputs, noise))
    if kind != "ffg_w":  # a deviation of 0 has an infinite KL, which is not counted
        torch.testing.assert_close(pruned.kl(7), dense.kl(7))
    for logits in both:
        nn.functional.cross_entropy(logits, torch.arange(5) % 3).backward()
    parameters, places = dict(pruned.named_parameters()), dict(pruned.named_modules())
    for name, parameter in dense.named_parameters():
        if parameter.grad is None:
            continue
        kept = places.get(name.replace(".z_", ".kept_").replace(".mean", ".kept").replace(".free_sd", ".kept"))
        compared += kept is not None
        expected = parameter.grad if kept is None else kept.of(parameter.grad)
        torch.testing.assert_close(parameters[name].grad, expected, atol=1e-6, rtol=1e-4)
    assert compared == (8 if kind == "joint" else 6)


def test_removed_weights_are_0_in_every_draw_and_have_no_kl() -> None:
    net, total = network("ffg_w"), 0.0
    pruned = prune(net, 0.6)
    layer, noise = pruned.layers["0"], pruned.draw(20, Seed(5).generator())["0:weight"]
    drawn = torch.stack([layer({"weight": one}, layer.factors()) for one in noise])[:, :, :-1]
    mask = torch.from_numpy(masks(pruned)[0])
    assert (drawn[:, ~mask] == 0).all() and (drawn[:, mask].std(0) > 0).all()
    for (layer, _), (small, _) in zip(layers(net), layers(pruned), strict=True):
        law = torch.distributions.Normal(layer.mean.detach(), layer.sd.detach())
        prior = torch.distributions.Normal(0.0, 1 / math.sqrt(layer.mean.shape[1]))
        each = torch.distributions.kl_divergence(law, prior)
        total += float(each[small.kept(torch.ones(small.kept.count)) > 0].double().sum())
    assert float(pruned.kl().detach()) == pytest.approx(total, rel=1e-5)
    assert float(net.kl().detach()) > 1.2 * total


def test_cached_factors_follow_a_change_of_the_mask() -> None:
    pruned = prune(network("ffg_u"), 0.5).eval()
    inputs = normal(4, 3, 6, 6)
    before = outputs(pruned, inputs, 3, Seed(1))
    layer = pruned.layers["0"]
    assert isinstance(layer, Inducing) and layer.kept_in is not None
    other = copy.deepcopy(pruned.state_dict())
    bits = np.unpackbits(layer.kept_in.packed.numpy(), bitorder="little")  # type: ignore[arg-type]
    other["layers.0.kept_in.packed"] = torch.from_numpy(np.packbits(np.roll(bits, 8), bitorder="little"))
    pruned.load_state_dict(other)
    fresh = copy.deepcopy(pruned)  # its cache is empty
    after = outputs(pruned, inputs, 3, Seed(1))
    assert torch.equal(after, outputs(fresh, inputs, 3, Seed(1))) and not torch.equal(after, before)


def test_a_network_pruned_of_almost_all_entries_still_predicts() -> None:
    """Less than one entry left: W is its bias, or the part of the prior that λ and D leave."""
    inputs = normal(4, 3, 6, 6)
    weights = prune(network("ffg_w"), 0.9999).eval()
    assert sum(kept_counts(weights).values()) == 7  # two biases
    assert torch.equal(outputs(weights, inputs, 2, Seed(0))[:, 0], outputs(weights, inputs, 2, Seed(0))[:, 1])
    assert outputs(prune(network("ffg_u"), 0.9999).eval(), inputs, 2, Seed(0)).isfinite().all()


def test_shares_out_of_range_and_networks_that_cannot_be_pruned_are_refused() -> None:
    for share in (0.0, 1.0, -0.5, 1.5):
        with pytest.raises(ConfigError, match="prune must be > 0 and < 1, got"):
            prune(network("ffg_u"), share)
    with pytest.raises(UserError, match="is already pruned"):
        prune(prune(network("ffg_u"), 0.5), 0.5)
    with pytest.raises(UserError, match="none of the network's layers can be pruned"):
        prune(bayesianize(mlp(), "fcg_w"), 0.5)

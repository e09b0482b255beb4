"""The teacher's chains and their average: gradients, resumption, thinning, the posterior sampled."""

import dataclasses

import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal
from torch.func import functional_call

from bdl_pipe import networks
from bdl_pipe.artifacts import State
from bdl_pipe.data.rows import HeldRows
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import ConvNetConfig, MlpConfig, PreResNetConfig, ResNetConfig, VggConfig, WideResNetConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import chains, sgld
from bdl_pipe.sgmcmc.joint import NetworkJoint
from tests.sgmcmc import cases

DATA = {"classification": cases.images(), "regression": cases.table()}
tasks = pytest.mark.parametrize("task", list(DATA))


def fit(task: str, report=None, member: int = 0, **override) -> State:
    rng = Seed(0).fold("member", member)
    return chains.teacher(DATA[task], {}, cases.sgld_config(**override), rng=rng, report=report or Silent())


@tasks
def test_gradient_is_that_of_torch_distributions(task):
    """∇ log p(θ, D) written with torch.distributions and the full data, in named parameters."""
    data = DATA[task]
    spec = chains.teacher_spec(data, cases.sgld_config().target)
    rows = data.tensors("train")
    joint = NetworkJoint(spec, HeldRows(*rows), 3.0, Seed(1))
    network = spec.build(Seed(1))
    leaves = {name: p.detach().clone().requires_grad_() for name, p in network.named_parameters()}
    outputs = functional_call(network, leaves, (rows[0],))
    if task == "classification":
        likelihood = TorchCategorical(logits=outputs).log_prob(rows[1]).sum()
    else:
        likelihood = Normal(outputs, 10.0**-0.5).log_prob(rows[1]).sum()
    prior = sum(Normal(0.0, 3.0**-0.5).log_prob(p).sum() for p in leaves.values())
    expected = torch.autograd.grad(likelihood + prior, list(leaves.values()))
    flat = torch.cat([g.reshape(-1) for g in expected])
    got = joint.gradient({"flat": joint.start}, torch.arange(len(rows[0])))["flat"]
    torch.testing.assert_close(got, flat, rtol=1e-4, atol=1e-3)
    again = joint.gradient({"flat": joint.start}, torch.arange(len(rows[0])))["flat"]
    assert torch.equal(got, again)  # nothing accumulates


@tasks
def test_a_temperature_divides_the_log_joint(task):
    """Draws of a chain at T = 4 are those of the kernel on a quarter of the plain gradient, from the same start."""
    data, target = DATA[task], cases.sgld_config().target
    rng = Seed(0).fold("member", 0)
    joint = NetworkJoint(chains.teacher_spec(data, target), data.rows("train"), 1.0, rng.fold("start"))

    def quarter(position, index):
        return {"flat": joint.gradient(position, index)["flat"] / 4}

    batches = sgld.Minibatches(len(data.train), target.batch, rng)
    visited = sgld.chain({"flat": joint.start}, quarter, batches, target.step_size, rng, 0, 4)
    expected = joint.network.named(torch.stack([position["flat"] for _, position in visited]))
    thinning = {"steps": 4, "burn_in": 0, "every": 1}
    warm, plain = (fit(task, target={"temperature": t}, thinning=thinning).tensors for t in (4.0, 1.0))
    assert all(torch.equal(value, expected[name]) for name, value in warm.items())
    assert not torch.allclose(plain["head.weight"], warm["head.weight"], atol=1e-3)


@tasks
def test_minibatch_gradients_average_to_the_full_gradient(task):
    data = DATA[task]
    rows = data.tensors("train")
    joint = NetworkJoint(chains.teacher_spec(data, cases.sgld_config().target), HeldRows(*rows), 1.0, Seed(1))
    order = torch.randperm(len(rows[0]), generator=Seed(2).generator())
    at = {"flat": joint.start}
    parts = torch.stack([joint.gradient(at, part)["flat"] for part in order.chunk(4)])
    full = joint.gradient(at, order)["flat"]
    torch.testing.assert_close(parts.mean(0), full, rtol=1e-4, atol=1e-3)


@tasks
def test_a_chain_keeps_what_it_says(task):
    state = fit(task)
    assert {len(t) for t in state.tensors.values()} == {13}
    posterior = NetworkDraws.from_state(state)
    assert posterior.spec.likelihood == ("categorical" if task == "classification" else "gaussian")
    assert posterior.spec.noise_variance == pytest.approx(0.1)
    weights = state.tensors["head.weight"]
    assert len(weights.unique(dim=0)) == 13


def test_polynomial_steps_shrink_the_moves():
    shrinking = {"step_size": {"name": "polynomial", "a": 1e-3, "b": 1.0, "c": 1.0}}
    dense = {"steps": 40, "burn_in": 0, "every": 1}
    moves = fit("regression", target=shrinking, thinning=dense).tensors["trunk.1.weight"].diff(dim=0).square()
    assert float(moves[-5:].mean()) < 0.25 * float(moves[:5].mean())


def test_norms_that_tie_rows_are_refused():
    network = {"name": "convnet", "width": 4, "blocks": 1, "norm": "batch"}
    with pytest.raises(ConfigError, match="norm"):
        fit("classification", target={"network": network})


def numbered(count: int, offset: int) -> State:
    spec = NetworkSpec(MlpConfig("mlp", (2,)), (1,), 1, "gaussian")
    names = spec.build(Seed(0)).state_dict()
    label = torch.arange(count, dtype=torch.float32) + offset
    weights = {k: label.reshape(-1, *[1] * v.ndim).expand(-1, *v.shape).clone() for k, v in names.items()}
    return NetworkDraws(spec, weights).state()


@pytest.mark.parametrize(
    ("max_draws", "expected"),
    [
        (None, [0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105]),
        (6, [1, 3, 5, 101, 103, 105]),
        (5, [2, 5, 102, 105]),
        (1, [5]),
        (99, [0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105]),
    ],
)
def test_average_thins_evenly(max_draws, expected):
    posterior = chains.average([numbered(6, 0), numbered(6, 100)], max_draws)
    assert posterior.weights["head.bias"][:, 0].tolist() == expected


@tasks
def test_student_is_the_mixture_of_all_draws(task):
    states = [fit(task), fit(task, member=1)]
    state = chains.student(DATA[task], {"teacher": states}, cases.sgld_config(), rng=Seed(0), report=Silent())
    x, y = DATA[task].tensors("train")
    together = NetworkDraws.from_state(state).predict(x).log_prob(y).exp()
    apart = [NetworkDraws.from_state(s).predict(x).log_prob(y).exp() for s in states]
    torch.testing.assert_close(together, (apart[0] + apart[1]) / 2, rtol=1e-4, atol=1e-6)


def test_a_temperature_is_positive():
    with pytest.raises(ConfigError, match=r"^methods.sgld.target.temperature must be > 0, got 0.0$"):
        cases.sgld_config(target={"temperature": 0})


@tasks
def test_a_target_has_no_dropout(task):
    target = dataclasses.replace(cases.sgld_config().target, network=MlpConfig("mlp", (4,), dropout=0.1))
    with pytest.raises(ConfigError, match=r"^target.network.dropout must be 0"):
        chains.teacher_spec(DATA[task], target)


def test_networks_that_factorise():
    convnets = [ConvNetConfig("convnet", 8, 1, norm) for norm in ("none", "group", "instance")]
    for network in (*convnets, VggConfig("vgg", "none", 0.0), MlpConfig("mlp", (4,))):
        assert chains.factorises(networks.build(network, (1, 32, 32), 2, rng=Seed(0)))
    normal = (WideResNetConfig("wide_resnet", 10, 1), ResNetConfig("resnet", 18), PreResNetConfig("preresnet", 11))
    tied = [ConvNetConfig("convnet", 8, 1, norm) for norm in ("batch", "batch_stats")]
    for network in (*normal, *tied, VggConfig("vgg", "batch", 0.0)):
        assert not chains.factorises(networks.build(network, (1, 32, 32), 2, rng=Seed(0)))


def test_a_batch_norm_is_seen_in_a_network_of_any_class():
    for norm in (
        torch.nn.BatchNorm1d(3),
        torch.nn.SyncBatchNorm(3),
        torch.nn.BatchNorm1d(3, track_running_stats=False),
    ):
        assert not chains.factorises(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sequential(norm)))
    assert chains.factorises(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3)))

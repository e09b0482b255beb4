"""Prediction from many draws: equality with a loop, equal members, factors that follow the parameters."""

import copy

import pytest
import torch
from torch import nn

from bdl_pipe.errors import ConfigError
from bdl_pipe.inducing import Bayesian, bayesianize, draws, outputs
from bdl_pipe.inducing.layers import Inducing
from bdl_pipe.seeds import Seed

from .cases import ALL, RIVALS, UNIT, conv_net, mlp, normal, shaken


def one_by_one(net: Bayesian, inputs: torch.Tensor, num_draws: int, rng: Seed = Seed(1)) -> torch.Tensor:
    """The outputs of a loop over draws, which computes the factors for each."""
    drawn = []
    for k in range(num_draws):
        noise = {name: v[0] for name, v in net.draw(1, rng.fold("draw", k).generator()).items()}
        if net.members is not None:
            noise["member"] = nn.functional.one_hot(torch.tensor(k % net.members), net.members).to(net.dtype)
        drawn.append(net(inputs, noise))
    return torch.stack(drawn).detach()


def small(kind: str = "ffg_u", **options: object) -> tuple[Bayesian, torch.Tensor]:
    """A small network in evaluation mode, and inputs for it."""
    return shaken(bayesianize(mlp(), kind, rows=3, cols=2, **options)).eval(), normal(5, 3)


@pytest.mark.parametrize(
    ("kind", "together"), [(k, 3) for k in (*ALL, *RIVALS)] + [("ffg_u", n) for n in (None, 1, 20)]
)
def test_batched_draws_equal_a_loop_over_draws(kind: str, together: int | None) -> None:
    net, inputs = shaken(bayesianize(conv_net(), kind, rows=3, cols=4, members=2)).eval(), normal(5, 3, 6, 6)
    ours = outputs(net, inputs, 6, Seed(1), rows=2, together=together)
    torch.testing.assert_close(ours, one_by_one(net, inputs, 6), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("groups", "channels"), [(2, 1), (2, 3), (4, 3)])
@pytest.mark.parametrize("together", [None, 4])
def test_draws_do_not_depend_on_the_memory_format(together: int | None, groups: int, channels: int) -> None:
    """One draw at a time, a CPU gets channels_last, even with one channel; vmap has no group norm in this format.

    A network with an instance norm, of as many groups as channels, gets contiguous inputs.
    """
    last = list[bool]()
    norm = nn.GroupNorm(groups, 4)
    plain = nn.Sequential(nn.Conv2d(channels, 4, 3), norm, nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
    net, inputs = shaken(bayesianize(plain, rows=3, cols=4)).eval(), normal(5, channels, 6, 6)
    net.network[0].register_forward_hook(lambda _m, given, _o: last.append(given[0].stride(1) == 1))
    expected = one_by_one(net, inputs, 4)
    last.clear()
    for each in (inputs, inputs.to(memory_format=torch.channels_last), inputs.clone(memory_format=torch.channels_last)):
        drawn = outputs(net, each, 4, Seed(1), rows=2, together=together)
        torch.testing.assert_close(drawn, expected, rtol=1e-4, atol=1e-5)
    assert together is not None or {*last} == {groups == 2}


@pytest.mark.parametrize("shared", [None, (2, 3)])
def test_draws_of_shared_weights_and_without_spread_equal_a_loop(shared: tuple[int, int] | None) -> None:
    for options in ({}, {"lambda_max": 0}, {"lambda_max": 0, "sd_max": 0}):
        net, inputs = small(shared=shared, **options)
        torch.testing.assert_close(outputs(net, inputs, 4, Seed(1)), one_by_one(net, inputs, 4), rtol=1e-4, atol=1e-5)


def test_draws_return_log_probabilities_and_keep_the_training_mode() -> None:
    net, inputs = bayesianize(conv_net()).train(), normal(5, 3, 6, 6)
    net.network[1].eval()
    drawn = draws(net, inputs, 3, Seed(1))
    torch.testing.assert_close(drawn.exp().sum(-1), torch.ones(3, 5))
    assert net.training and not net.network[1].training and not drawn.requires_grad
    assert torch.equal(drawn, draws(net.eval(), inputs, 3, Seed(1)))


def test_a_draw_depends_neither_on_the_batch_nor_on_the_number_of_draws() -> None:
    net, inputs = bayesianize(mlp(), "ffg_w"), normal(5, 3)
    many = draws(net, inputs, 6, Seed(1))
    torch.testing.assert_close(many[:2, 3:], draws(net, inputs[3:], 2, Seed(1)))
    generator = Seed(1).generator()
    assert not torch.equal(draws(net, inputs, 2, generator), draws(net, inputs, 2, generator))


def test_draws_take_each_member_equally_often() -> None:
    net, inputs = bayesianize(mlp(), "ensemble_u", members=3, lambda_max=0), normal(5, 3)
    drawn = draws(net, inputs, 6, Seed(1))
    torch.testing.assert_close(drawn[:3], drawn[3:])
    assert not torch.allclose(drawn[0], drawn[1])
    with pytest.raises(ConfigError, match="num_draws must be a multiple of the 3 members, got 8"):
        draws(net, inputs, 8, Seed(1))


def step(net: Bayesian) -> None:
    net(normal(5, 3)).square().sum().backward()
    torch.optim.Adam(net.parameters(), 0.1).step()


def behind_autograd(net: Bayesian) -> None:
    for p in net.parameters():
        p.data.mul_(1.1)  # does not raise a parameter's version


def replaced(net: Bayesian) -> None:
    for p in net.parameters():
        p.data = 1.1 * p.data


CHANGES = {
    "a step": step,
    "a loaded state": lambda net: net.load_state_dict(shaken(copy.deepcopy(net)).state_dict()),
    "behind autograd": behind_autograd,
    "other data": replaced,
    "another parameter": lambda net: setattr(
        net.layers["0"], "z_out", nn.Parameter(net.layers["0"].z_out.detach().flip(1))
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", UNIT)
def test_draws_follow_every_change_of_the_parameters(kind: str, change: str) -> None:
    net, inputs = small(kind)
    before = outputs(net, inputs, 5, Seed(1))
    CHANGES[change](net)
    after = outputs(net, inputs, 5, Seed(1))
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, one_by_one(net, inputs, 5), rtol=1e-4, atol=1e-5)


def test_factors_follow_the_dtype_of_the_network() -> None:
    net, inputs = small()
    single = outputs(net, inputs, 5, Seed(1))
    double = outputs(net.double(), inputs.double(), 5, Seed(1))
    assert single.dtype == torch.float32 and double.dtype == torch.float64
    assert torch.equal(outputs(net.float(), inputs, 5, Seed(1)), single)


def test_factors_are_computed_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    (net, inputs), computed, original = small(), list[int](), Inducing.factors
    monkeypatch.setattr(Inducing, "factors", lambda layer: computed.append(1) or original(layer))
    outputs(net, inputs, 5, Seed(1), together=1)
    assert len(computed) == 2  # layers
    outputs(net, inputs, 5, Seed(2))
    with torch.no_grad():
        net.layers["0"].posterior.mean.add_(1)  # no factor depends on it
    moved = outputs(net, inputs, 5, Seed(2))
    assert len(computed) == 2
    torch.testing.assert_close(moved, one_by_one(net, inputs, 5, Seed(2)), rtol=1e-4, atol=1e-5)
    computed.clear()
    with torch.no_grad():
        net.layers["0"].z_in.add_(1)
    outputs(net, inputs, 5, Seed(1))
    assert len(computed) == 1
    outputs(copy.deepcopy(net), inputs, 5, Seed(1))
    assert len(computed) == 3  # a copy starts without factors


@pytest.mark.parametrize("together", [1, 3])
def test_drawn_outputs_do_not_depend_on_how_the_batch_is_split(together: int) -> None:
    net, inputs = shaken(bayesianize(conv_net(), "ffg_w", sd_init=0.3, sd_max=None)).eval(), normal(5, 3, 6, 6)
    whole = outputs(net, inputs, 4, Seed(1), local=True)
    torch.testing.assert_close(outputs(net, inputs, 4, Seed(1), rows=2, together=together, local=True), whole)
    assert not torch.allclose(outputs(net, inputs, 4, Seed(1)), whole, atol=1e-3)

"""Prediction from many draws: equality with a loop, equal members, factors that follow the parameters."""

import copy

import pytest
import torch
from torch import nn

from bdl_pipe.errors import ConfigError
from bdl_pipe.inducing import Bayesian, bayesianize, draws, outputs, stored
from bdl_pipe.inducing.layers import Inducing
from bdl_pipe.seeds import Seed

from .cases import ALL, UNIT, conv_net, mlp, normal, shaken


def one_by_one(net: Bayesian, inputs: torch.Tensor, num_draws: int, rng: Seed) -> torch.Tensor:
    """The outputs of a loop over draws, which computes the factors for each."""
    found = []
    for k in range(num_draws):
        noise = {name: v[0] for name, v in net.draw(1, rng.fold("draw", k).generator()).items()}
        if net.members is not None:
            noise["member"] = nn.functional.one_hot(torch.tensor(k % net.members), net.members).to(net.dtype)
        found.append(net(inputs, noise))
    return torch.stack(found).detach()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("together", [None, 1, 3, 20])
def test_batched_draws_equal_a_loop_over_draws(kind: str, together: int | None) -> None:
    net, inputs = shaken(bayesianize(conv_net(), kind, rows=3, cols=4, members=2)).eval(), normal(5, 3, 6, 6)
    ours = outputs(net, inputs, 6, Seed(1), rows=2, together=together)
    torch.testing.assert_close(ours, one_by_one(net, inputs, 6, Seed(1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("together", [None, 4])
def test_draws_do_not_depend_on_the_memory_format(together: int | None, channels: int) -> None:
    """One draw at a time, a CPU gets channels_last, even with one channel; vmap has no group norm in this format."""
    seen: list[bool] = []
    plain = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
    net, inputs = shaken(bayesianize(plain, rows=3, cols=4)).eval(), normal(5, channels, 6, 6)
    net.network[0].register_forward_hook(lambda _m, given, _o: seen.append(given[0].stride(1) == 1))
    expected = one_by_one(net, inputs, 4, Seed(1))
    seen.clear()
    for each in (inputs, inputs.to(memory_format=torch.channels_last), inputs.clone(memory_format=torch.channels_last)):
        found = outputs(net, each, 4, Seed(1), rows=2, together=together)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert together is not None or (seen and all(seen))


def test_a_network_with_instance_norm_gets_contiguous_inputs() -> None:
    seen: list[int] = []
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(4, 4), nn.ReLU(), nn.Flatten())
    net = shaken(bayesianize(plain, rows=3, cols=4)).eval()
    net.network[0].register_forward_hook(lambda _m, given, _o: seen.append(given[0].stride(1)))
    inputs = normal(5, 3, 6, 6).to(memory_format=torch.channels_last)
    found = outputs(net, inputs, 2, Seed(1), rows=2)
    assert set(seen) == {36}
    torch.testing.assert_close(found, one_by_one(net, inputs, 2, Seed(1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [None, (2, 3)])
def test_draws_of_shared_weights_and_without_spread_equal_a_loop(shared: tuple[int, int] | None) -> None:
    inputs = normal(5, 3)
    for options in ({}, {"lambda_max": 0}, {"lambda_max": 0, "sd_max": 0}):
        net = shaken(bayesianize(mlp(), rows=3, cols=2, shared=shared, **options)).eval()
        ours = outputs(net, inputs, 4, Seed(1))
        torch.testing.assert_close(ours, one_by_one(net, inputs, 4, Seed(1)), rtol=1e-4, atol=1e-5)


def test_draws_return_log_probabilities_and_keep_the_training_mode() -> None:
    net, inputs = bayesianize(conv_net()).train(), normal(5, 3, 6, 6)
    net.network[1].eval()
    found = draws(net, inputs, 3, Seed(1))
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(3, 5))
    assert net.training and not net.network[1].training and not found.requires_grad
    assert torch.equal(found, draws(net.eval(), inputs, 3, Seed(1)))


def test_a_draw_depends_neither_on_the_batch_nor_on_the_number_of_draws() -> None:
    net, inputs = bayesianize(mlp(), "ffg_w"), normal(5, 3)
    many = draws(net, inputs, 6, Seed(1))
    torch.testing.assert_close(many[:2, 3:], draws(net, inputs[3:], 2, Seed(1)))
    generator = Seed(1).generator()
    assert not torch.equal(draws(net, inputs, 2, generator), draws(net, inputs, 2, generator))


def test_draws_take_each_member_equally_often() -> None:
    net, inputs = bayesianize(mlp(), "ensemble_u", members=3, lambda_max=0), normal(5, 3)
    found = draws(net, inputs, 6, Seed(1))
    torch.testing.assert_close(found[:3], found[3:])
    assert not torch.allclose(found[0], found[1])
    with pytest.raises(ConfigError, match="num_draws must be a multiple of the 3 members, got 8"):
        draws(net, inputs, 8, Seed(1))


def counted(net: Bayesian, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one for each layer whose factors are computed."""
    made: list[int] = []
    original = Inducing.factors

    def factors(layer: Inducing) -> object:
        made.append(1)
        return original(layer)

    monkeypatch.setattr(Inducing, "factors", factors)
    return made


def step(net: Bayesian, inputs: torch.Tensor) -> None:
    optimiser = torch.optim.Adam(net.parameters(), 0.1)
    net(inputs).square().sum().backward()
    optimiser.step()


def load(net: Bayesian, _: torch.Tensor) -> None:
    net.load_state_dict(shaken(copy.deepcopy(net)).state_dict())


def behind_autograd(net: Bayesian, _: torch.Tensor) -> None:
    for p in net.parameters():
        p.data.mul_(1.1)  # does not raise a parameter's version


def replaced(net: Bayesian, _: torch.Tensor) -> None:
    for p in net.parameters():
        p.data = 1.1 * p.data


def exchanged(net: Bayesian, _: torch.Tensor) -> None:
    net.layers["0"].z_out = nn.Parameter(net.layers["0"].z_out.detach().flip(1))


@pytest.mark.parametrize("change", [step, load, behind_autograd, replaced, exchanged])
@pytest.mark.parametrize("kind", UNIT)
def test_draws_follow_every_change_of_the_parameters(kind: str, change: object) -> None:
    net, inputs = shaken(bayesianize(mlp(), kind, rows=3, cols=2)).eval(), normal(5, 3)
    before = outputs(net, inputs, 5, Seed(1))
    change(net, inputs)
    after = outputs(net, inputs, 5, Seed(1))
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, one_by_one(net, inputs, 5, Seed(1)), rtol=1e-4, atol=1e-5)


def test_factors_follow_the_dtype_of_the_network() -> None:
    net, inputs = shaken(bayesianize(mlp(), rows=3, cols=2)).eval(), normal(5, 3)
    single = outputs(net, inputs, 5, Seed(1))
    double = outputs(net.double(), inputs.double(), 5, Seed(1))
    assert single.dtype == torch.float32 and double.dtype == torch.float64
    again = outputs(net.float(), inputs, 5, Seed(1))
    assert torch.equal(again, single)


def test_factors_are_computed_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs = shaken(bayesianize(mlp(), rows=3, cols=2)).eval(), normal(5, 3)
    made = counted(net, monkeypatch)
    outputs(net, inputs, 5, Seed(1), together=1)
    assert len(made) == 2  # layers
    outputs(net, inputs, 5, Seed(2))
    with torch.no_grad():
        net.layers["0"].posterior.mean.add_(1)  # no factor depends on it
    moved = outputs(net, inputs, 5, Seed(2))
    assert len(made) == 2
    torch.testing.assert_close(moved, one_by_one(net, inputs, 5, Seed(2)), rtol=1e-4, atol=1e-5)
    made.clear()
    with torch.no_grad():
        net.layers["0"].z_in.add_(1)
    outputs(net, inputs, 5, Seed(1))
    assert len(made) == 1
    outputs(copy.deepcopy(net), inputs, 5, Seed(1))
    assert len(made) == 3  # a copy starts without factors


def test_parameters_are_counted_by_the_papers_convention() -> None:
    """Z_r, Z_c, both diagonals, one λ and q(U) for each layer, the bias as an input; normalisation is unchanged."""
    sizes = [(4, 28), (4, 18), (3, 5)]  # of conv_net's matrices
    conditional = sum(6 * out + 7 * columns + 6 + 7 + 1 for out, columns in sizes) + 8
    expected = {"ffg_u": 2 * 42, "ensemble_u": 5 * 42, "fcg_u": 42 + 42 * 43 // 2}
    for kind, size in expected.items():
        assert stored(bayesianize(conv_net(), kind, rows=6, cols=7)) == conditional + 3 * size
    plain = stored(conv_net())
    assert stored(bayesianize(conv_net(), "ffg_w")) == 2 * (plain - 8) + 8


def spread_of(net: Bayesian, inputs: torch.Tensor, local: bool) -> tuple[torch.Tensor, float]:
    """Mean [row] and variance [row] of the first output over 4,000 draws, and the correlation of the first two rows."""
    found = outputs(net, inputs, 4000, Seed(1), local=local)[..., 0]
    return torch.stack([found.mean(0), found.var(0)]), float(torch.corrcoef(found[:, :2].T)[0, 1])


def test_drawn_outputs_of_a_linear_layer_have_the_moments_of_drawn_weights() -> None:
    """Mean and variance of three rows by algebra, within 5 standard errors: a false alarm in 140,000 runs.

    Rows share drawn weights and no drawn outputs: correlations of .98 and 0.
    """
    net = shaken(bayesianize(nn.Linear(3, 2), "ffg_w", sd_init=0.3, sd_max=None)).eval()
    inputs = torch.tensor([[1.0, -2.0, 0.5], [1.1, -1.8, 0.4], [0.0, 0.3, 3.0]])
    layer = next(iter(net.layers.values()))
    wide = torch.cat([inputs, torch.ones(3, 1)], 1)
    mean, variance = wide @ layer.centre()[0].detach(), wide.square() @ layer.sd[0].detach().square()  # type: ignore[operator, union-attr, index]
    errors = torch.stack([(variance / 4000).sqrt(), variance * (2 / 4000) ** 0.5])
    for local in (False, True):
        found, correlation = spread_of(net, inputs, local)
        assert float(((found - torch.stack([mean, variance])) / errors).abs().max()) < 5
        assert (abs(correlation) < 0.1) if local else (correlation > 0.9)


@pytest.mark.soak
def test_a_mean_over_places_shrinks_the_variance_of_drawn_outputs() -> None:
    """With a filter of one weight and a mean over 9 equal places: a ninth of the variance of drawn weights."""
    network = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = bayesianize(network, "ffg_w", sd_init=0.3, sd_max=None).eval()
    inputs = torch.ones(2, 1, 3, 3)
    by_weights, by_outputs = (spread_of(net, inputs, local)[0][1] for local in (False, True))
    torch.testing.assert_close(by_weights, torch.full((2,), 0.09), rtol=0.15, atol=0)  # 6 standard errors
    torch.testing.assert_close(by_outputs, torch.full((2,), 0.01), rtol=0.15, atol=0)


@pytest.mark.parametrize("together", [1, 3])
def test_drawn_outputs_do_not_depend_on_how_the_batch_is_split(together: int) -> None:
    net, inputs = shaken(bayesianize(conv_net(), "ffg_w", sd_init=0.3, sd_max=None)).eval(), normal(5, 3, 6, 6)
    whole = outputs(net, inputs, 4, Seed(1), local=True)
    torch.testing.assert_close(outputs(net, inputs, 4, Seed(1), rows=2, together=together, local=True), whole)
    assert not torch.allclose(outputs(net, inputs, 4, Seed(1)), whole, atol=1e-3)

"""The teacher's chains and their average: resumption, thinning, divergence, the posterior that is sampled."""

import re

import pytest
import torch

from bdl_pipe.artifacts import State
from bdl_pipe.config import merge
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import method
from bdl_pipe.sgmcmc.sampler import NetworkChains
from bdl_pipe.training.snapshots import snapshot
from tests.case_files import sections_of
from tests.resuming import resumed, same_bits
from tests.sgmcmc import cases

DATA = {"classification": cases.images(), "regression": cases.table()}
KERNELS = sections_of(__file__)
tasks = pytest.mark.parametrize("task", list(DATA))
linear = pytest.fixture(cases.registered_linear)


def fit(
    task: str, report=None, members: tuple[int, ...] = (0,), data: FitData | None = None, **override
) -> list[State]:
    rngs, rows = [Seed(0).fold("member", member) for member in members], data or DATA[task]
    many, inputs = [rows] * len(members), [{}] * len(members)
    return method.teacher(many, inputs, cases.settings(**override), rngs=rngs, report=report or Silent())


@pytest.mark.parametrize("name", list(KERNELS))
@tasks
def test_chains_that_are_stopped_and_resumed_end_with_the_same_bits(task, name):
    """In regression three chains, one of them on rows of another noise, so that they run in two groups."""
    changes = {"sampler": KERNELS[name], "thinning": {"steps": 100, "burn_in": 40, "every": 10}}
    many, starts = [DATA["classification"]] * 2, (100,)
    if task == "regression":
        changes |= {"target": {"noise_precision": None}}
        many, starts = [DATA[task], cases.table(rows=40, validation=4), DATA[task]], (50, 150)
    rngs = [Seed(0).fold("member", member) for member in range(len(many))]

    def run(report: Report) -> list[State]:
        return method.teacher(many, [{}] * len(many), cases.settings(**changes), rngs=rngs, report=report)

    whole = run(Silent())
    for start in starts:
        again = resumed(run, from_step=start)
        assert all(same_bits(a, b) for a, b in zip(whole, again, strict=True))


@pytest.mark.parametrize(("curved", "least", "most"), [(0.0, 24.0, 29.0), (4.0, 5.0, 10.0)])
def test_a_noise_precision_of_null_is_estimated_by_a_line_or_by_trees(curved: float, least: float, most: float) -> None:
    """Noise of precision 25: a linear model finds it where the targets are linear.

    On a curve the linear model finds 1.6, and trees 7.3.
    """
    x = Seed(5).numpy().normal(size=(600, 2))
    y = (x[:, 0] + curved * x[:, 1] ** 2)[:, None] / (1 + 6 * (curved > 0)) + 0.2 * Seed(6).numpy().normal(
        size=(600, 1)
    )
    one = torch.ones(1)
    transform = Transform("table", torch.zeros(2), torch.ones(2), shift=0 * one, scale=one)
    data = FitData("regression", Examples(x, y), Examples(x[:0], y[:0]), transform)
    assert least < cases.settings(target={"noise_precision": None}).target.precision(data) < most


def test_the_error_of_a_diverging_chain_names_a_rate_that_lasts():
    """Every retry starts where the chain started."""
    message = r"^a chain diverged at step \d+, at the step size .*: lower sampler.step_size.rate from 30 to "

    def run(rate: float) -> None:
        sampler = KERNELS["sgld"] | {"step_size": {"name": "scaled", "rate": rate}}
        fit("regression", sampler=sampler, thinning={"steps": 100, "burn_in": 50, "every": 10})

    with pytest.raises(Diverged, match=message + r"([.\d]+), at which 100 steps did not diverge$") as caught:
        run(30.0)
    largest = float(re.findall(r"to ([.\d]+),", str(caught.value))[0])
    run(largest)
    with pytest.raises(Diverged):
        run(2 * largest)


@pytest.mark.slow
def test_every_kernel_samples_the_posterior_of_a_linear_network(linear):
    """Means and variances of f at 5 inputs of a linear network, a conjugate model, against its closed form.

    Within .3 standard deviations and 40 % of a variance: 16 chains of 15 kept draws, minibatches where the kernel takes
    them. Told apart: a prior of four times the precision.
    """
    data = DATA["regression"]
    spec = {"network": {"name": "linear_of_tests"}, "prior_precision": 4.0, "noise_precision": 4.0}
    x, y = (part.double() for part in data.tensors("train"))
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    some = design[:5]
    laws = []
    for precision in (4.0, 16.0):
        covariance = torch.linalg.inv(4 * design.T @ design + precision * torch.eye(3))
        laws.append(((some @ covariance @ (4 * design.T @ y))[:, 0], (some @ covariance @ some.T).diagonal()))
    sizes = {"sgld": 2e-3, "psgld": 2e-3, "sghmc, cyclical": 1e-2, "sgnht": 1e-2, "hmc": 0.05}
    thinning, members = {"steps": 400, "burn_in": 100, "every": 20}, tuple(range(16))
    for name, size in sizes.items():
        steps = {"step_size": {"name": "constant", "value": size}, "batch": None if name == "hmc" else 20}
        sampler = KERNELS[name] | steps
        states = fit("regression", None, members, target=spec, sampler=sampler, thinning=thinning)
        f = torch.cat(
            [NetworkDraws.from_state(s).predict(some[:, :2].float()).draw_mean[..., 0] for s in states]
        ).double()
        fits = [
            float(((f.mean(0) - mean) / variance.sqrt()).abs().max()) < 0.3
            and float((f.var(0) / variance - 1).abs().max()) < 0.4
            for mean, variance in laws
        ]
        assert fits == [True, False], (name, f.mean(0), f.var(0), laws)


def test_the_noise_ratio_of_minibatches_equals_its_closed_form(linear):
    """A linear network: of M of N rows the gradient's covariance is N²(1/M)(1 − M/N) S; the factor is η/4."""
    data = DATA["regression"]
    config = cases.settings(target={"network": {"name": "linear_of_tests"}}, sampler={"batch": 4})
    chains = NetworkChains([data], config.target, config.sampler, [Seed(0)], 0)
    at = torch.zeros(1, 3)
    x, y = (part.double() for part in data.tensors("train"))
    per_row = 10 * y * torch.cat([x, torch.ones(len(x), 1)], 1)  # ∇ log p at 0: λ_n y x
    covariance = 40**2 * per_row.T.cov() / 4 * (1 - 4 / 40)
    exact = 1e-3 / 4 * torch.tensor([covariance.trace() / 3, torch.linalg.eigvalsh(covariance)[-1]])
    ratio = chains.noise_ratio(at, 0 + 1, 1000)
    assert ratio == pytest.approx(exact.tolist(), rel=0.2)
    whole = NetworkChains([data], config.target, cases.settings(sampler={"batch": None}).sampler, [Seed(0)], 0)
    assert whole.noise_ratio(at, 1, 10) == (0.0, 0.0)


def test_a_chain_starts_from_a_trajectory_or_from_the_prior():
    spec = cases.settings().target.spec(DATA["regression"])
    networks_ = NetworkDraws.of(spec, [spec.build(Seed(c)).state_dict() for c in (5, 6)])
    step = {"sampler": {"step_size": {"name": "constant", "value": 1e-14}}}
    tiny = step | {"thinning": {"steps": 1, "burn_in": 0, "every": 1}}

    def started(**changes) -> State:
        inputs, settings = [{"trajectory": [networks_.state()]}], cases.settings(**changes)
        return method.teacher([DATA["regression"]], inputs, settings, rngs=[Seed(0)], report=Silent())[0]

    for name, value in started(**tiny).tensors.items():
        torch.testing.assert_close(value[0], networks_.weights[name][-1], rtol=0, atol=1e-5)
    wide = {"sampler": {"start": "prior"}, "target": {"prior_precision": 0.25, "network": {"hidden": [200]}}}
    (drawn,) = fit("regression", **merge(tiny, wide))
    weights = torch.cat([value.flatten() for value in drawn.tensors.values()])
    assert float(weights.std()) == pytest.approx(2.0, rel=0.15)  # 801 of them, 6 standard errors
    with pytest.raises(ConfigError, match=r"^target.network must be the trajectory's"):
        started(target={"network": {"hidden": [3]}})


BATCH_NORM = {"network": {"name": "convnet", "width": 4, "blocks": 1, "norm": "batch"}}
FROZEN = {"target": BATCH_NORM | {"batch_norm": "frozen"}}


def walked(spec: NetworkSpec, seed: int) -> State:
    """A trajectory of two snapshots, whose batch norms have seen other images each."""
    network, states = spec.build(Seed(seed)), []
    for number in range(2):
        network(2 + torch.randn(40, *spec.input_shape, generator=Seed(seed).fold(str(number)).generator()))
        states.append({name: value.clone() for name, value in network.state_dict().items()})
    return NetworkDraws.of(spec, states).state()


def log_joint(network: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, precision: float) -> float:
    """Σ log softmax(f(x))_y − λ/2 ‖θ‖² in float64."""
    chosen = network.double()(x.double()).log_softmax(1).gather(1, y[:, None]).sum()
    prior = sum(float(p.detach().square().sum()) for p in network.parameters())
    return float(chosen.detach()) - precision / 2 * prior


def test_a_chain_with_frozen_batch_norm_samples_a_product_over_rows() -> None:
    """Its density is the log joint, row by row, of the trajectory's last network in evaluation mode.

    Told apart: the statistics of the batch (training mode), of the first snapshot, and of another chain's network.
    """
    data, config = DATA["classification"], cases.settings(**FROZEN, sampler={"batch": None})
    spec, (x, y) = config.target.spec(data), data.tensors("train")
    first, other = walked(spec, 1), walked(spec, 2)
    target = NetworkChains([data], config.target, config.sampler, [Seed(0)], 0).target
    target.freeze(snapshot(first, -1))
    at = target.network.flat(snapshot(first, -1))[None]
    value, gradient = target.whole()(at)

    def of(statistics: State, number: int = -1, train: bool = False) -> float:
        network, own = spec.build(Seed(0)).train(train), snapshot(first, -1)
        parameters = {name: own[name] for name, _ in network.named_parameters()}
        network.load_state_dict(snapshot(statistics, number) | parameters)
        prior = log_joint(network, x[:0], y[:0], config.target.prior_precision) if not train else 0.0
        rows = [(x, y)] if train else [(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
        whole = [log_joint(network, *row, config.target.prior_precision) - prior for row in rows]
        return sum(whole) + prior

    assert float(value) == pytest.approx(of(first), rel=1e-5)
    for wrong in (of(first, train=True), of(first, 0), of(other)):
        assert abs(wrong / float(value) - 1) > 1e-3
    step = 1e-3 * gradient / gradient.norm()
    rise = float(target.whole()(at + step)[0] - target.whole()(at - step)[0])
    assert rise == pytest.approx(2e-3 * float(gradient.norm()), rel=0.02)
    parts = [torch.arange(i, len(x), 3) for i in range(3)]  # minibatches of 20 rows: an unbiased gradient
    mean = torch.stack([target.density([part])(at)[1] for part in parts]).mean(0)
    torch.testing.assert_close(mean, gradient, rtol=1e-4, atol=1e-3)


def test_draws_keep_the_frozen_statistics_of_their_own_trajectory_after_a_stop_too() -> None:
    thinning = {"steps": 60, "burn_in": 20, "every": 20}
    data, config = [DATA["classification"]] * 2, cases.settings(**FROZEN, thinning=thinning)
    spec = config.target.spec(data[0])
    starts = [walked(spec, 1), walked(spec, 2)]

    def run(report: Report) -> list[State]:
        inputs = [{"trajectory": [start]} for start in starts]
        return method.teacher(data, inputs, config, rngs=[Seed(0), Seed(1)], report=report)

    states = run(Silent())
    assert all(same_bits(a, b) for a, b in zip(states, resumed(run, from_step=110), strict=True))
    for state, start in zip(states, starts, strict=True):
        last = snapshot(start, -1)
        for name, value in state.tensors.items():
            kept = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
            assert all(torch.equal(draw, last[name]) == kept for draw in value), name
    assert not torch.equal(*(state.tensors["trunk.1.running_mean"][0] for state in states))
    assert len(method.average(states, 4).weights["trunk.1.running_var"]) == 4  # two draws of each


def test_frozen_batch_norm_needs_a_batch_norm_with_running_statistics_and_a_trajectory() -> None:
    for network in ({"name": "mlp", "hidden": [4]}, BATCH_NORM["network"] | {"norm": "batch_stats"}):
        with pytest.raises(ConfigError, match=r"^target.batch_norm must be refused: the network has no batch norm"):
            target = cases.settings(target={"network": network, "batch_norm": "frozen"}).target
            target.spec(DATA["classification"])
    with pytest.raises(
        ConfigError, match=r"^input must be a trajectory: target.batch_norm is frozen, got 'the data alone'$"
    ):
        fit("classification", **FROZEN)
    with pytest.raises(ConfigError, match=r"^target.network.norm must be .*, or target.batch_norm must be frozen"):
        fit("classification", target=BATCH_NORM)


@tasks
def test_a_chain_keeps_the_draws_and_the_likelihood_of_its_config(task):
    (state,) = fit(task)
    assert {len(t) for t in state.tensors.values()} == {13}
    posterior = NetworkDraws.from_state(state)
    assert posterior.spec.likelihood == ("categorical" if task == "classification" else "gaussian")
    assert posterior.spec.noise_variance == pytest.approx(1.0 if task == "classification" else 0.1)
    weights = state.tensors["head.weight"]
    assert len(weights.unique(dim=0)) == 13


def numbered(count: int, offset: int) -> State:
    spec = NetworkSpec(MlpConfig("mlp", (2,)), (1,), 1, "gaussian")
    names = spec.build(Seed(0)).state_dict()
    label = torch.arange(count, dtype=torch.float32) + offset
    weights = {k: label.reshape(-1, *[1] * v.ndim).expand(-1, *v.shape).clone() for k, v in names.items()}
    return NetworkDraws(spec, weights).state()


@pytest.mark.parametrize(
    ("max_draws", "expected"), [(None, range(6)), (6, [1, 3, 5]), (5, [2, 5]), (1, [5]), (99, range(6))]
)
def test_the_average_thins_the_draws_of_each_chain_evenly(max_draws, expected):
    posterior = method.average([numbered(6, 0), numbered(6, 100)], max_draws)
    both = [*expected, *(100 + number for number in expected)] if max_draws != 1 else expected
    assert posterior.weights["head.bias"][:, 0].tolist() == both


@tasks
def test_the_student_is_the_mixture_of_all_draws(task):
    states = fit(task, None, (0, 1))
    state = method.student(DATA[task], {"teacher": states}, cases.settings(), rng=Seed(0), report=Silent())
    x, y = DATA[task].tensors("train")
    together, *apart = (NetworkDraws.from_state(s).predict(x).log_prob(y).exp() for s in (state, *states))
    torch.testing.assert_close(together, (apart[0] + apart[1]) / 2, rtol=1e-4, atol=1e-6)

"""Fits of random weights: the loss, the schedule of its KL, noise in parts, normalisation, refused sections."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.inducing import learner as module
from bdl_pipe.inducing import methods
from bdl_pipe.inducing.learner import RandomSpec, RandomWeights
from bdl_pipe.inducing.methods import RandomWeightsPosterior
from bdl_pipe.networks.normalisation import refresh_batch_norm
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from bdl_pipe.training.learner import FitResult
from tests.cases import RANDOM, RANDOM_IMAGES, config_of, fit


def spec(method: str, task: str, **changes: Any) -> RandomSpec:
    config = config_of(method, task, **changes)
    shape = (1, 8, 8) if task == "classification" else (4,)
    return RandomSpec(config, shape, 3 if task == "classification" else 1, task)  # type: ignore[arg-type]


def fitted(method: str, data: FitData, **changes: Any) -> State:
    return fit(method, "student", data, rng=Seed(4), **changes)


def learner_of(method: str, task: str = "regression", **changes: Any) -> RandomWeights:
    return RandomWeights(spec(method, task, **changes), Seed(0))


@pytest.mark.parametrize("function_space", [False, True])
def test_the_loss_is_the_negative_bound_per_row(function_space: bool) -> None:
    learner = learner_of("ffg_u", function_space=function_space).double()
    inputs, targets = torch.randn(7, 4).double(), torch.randn(7, 1).double()
    noise = {k: v[0] for k, v in learner.noise(1, 7, Seed(1).generator()).items()}
    mean = learner.net(inputs, {k: v.double() for k, v in noise.items()})
    truth = torch.distributions.Normal(mean, learner.likelihood.log_variance.exp().sqrt()).log_prob(targets).mean()
    divergence = learner.net.kl(3 if function_space else None)
    scheduled = {k: v[0] for k, v in learner.scheduled(torch.tensor([3.0])).items()}
    torch.testing.assert_close(learner(inputs, targets, 3, noise | scheduled), -truth + divergence / 3)
    assert (learner.net.kl(3) - learner.net.kl(None)).abs() > 1  # four inputs and a bias, three rows


def test_the_end_of_a_fit_without_batch_norm_builds_none(tiny_table: FitData, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, asked = dict(learner_of("ffg_u").state_dict()), spec("ffg_u", "regression")
    monkeypatch.setattr(methods, "RandomWeights", None)
    result = FitResult([tensors], 1, 0.0)
    assert RandomWeightsPosterior.finish(asked, result, tiny_table, Seed(0)) is tensors


def test_batch_norm_statistics_are_refreshed_without_a_graph(tiny_images: FitData) -> None:
    learner, graphs = learner_of("ffg_u", "classification"), list[bool]()
    for layer in learner.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.register_forward_hook(lambda *hooked: graphs.append(hooked[2].requires_grad))
    refresh_batch_norm(learner.net, tiny_images.tensors("train")[0], 40)
    assert graphs == [False] * 8  # two layers, four batches


def test_the_kl_weight_rises_linearly() -> None:
    epochs = torch.tensor([0.0, 0.99, 1.0, 1.5, 2.0, 3.0, 9.0])
    for changes, expected in (
        ({"kl_weight": 0.5}, [0, 0, 0, 0.125, 0.25, 0.5, 0.5]),
        ({"annealing": {"start": 1.0, "end": 1.0}}, [0, 0, 1, 1, 1, 1, 1]),
        ({"annealing": None}, [1.0] * 7),
    ):
        weights = learner_of("ffg_u", **changes).scheduled(epochs)["kl_weight"]
        torch.testing.assert_close(weights, torch.tensor(expected).float())


def test_the_kl_changes_a_fit_unless_it_starts_after_the_last_epoch(tiny_table: FitData) -> None:
    late, never, always = (
        fitted("ffg_u", tiny_table, training=RANDOM["training"] | {"early_stopping": None}, **changes).tensors
        for changes in ({"annealing": {"start": 4.0, "end": 4.0}}, {"kl_weight": 0.0}, {"annealing": None})
    )
    assert all(torch.equal(value, never[k]) for k, value in late.items())
    assert any(not torch.equal(value, always[k]) for k, value in late.items())


@pytest.mark.parametrize("numbers", [1, 2500])
def test_noise_is_drawn_in_bounded_parts(numbers: int, tiny_images: FitData, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, draw = list[tuple[int, int]](), RandomWeights.noise

    def watched(self: RandomWeights, steps: int, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        noise = draw(self, steps, batch, generator)
        seen.append((steps, sum(v.numel() for v in noise.values())))
        return noise

    monkeypatch.setattr(module, "_AT_ONCE", numbers)
    monkeypatch.setattr(RandomWeights, "noise", watched)
    fitted("ffg_u", tiny_images)
    assert sum(steps for steps, _ in seen) == 4 * 10  # 160 images by 16, 4 epochs
    assert all(size <= numbers or steps == 1 for steps, size in seen)
    assert (max(steps for steps, _ in seen) > 1) == (numbers > 1)


def test_noise_size_equals_the_count_of_drawn_numbers() -> None:
    for method in ("ffg_u", "fcg_u", "ffg_w", "fcg_w"):
        learner = RandomWeights(spec(method, "classification"), Seed(0))
        inputs = torch.zeros(5, 1, 8, 8)
        drawn = learner.net.draw(1, Seed(0).generator(), inputs)
        assert learner.net.noise_size(inputs) == sum(v.numel() for v in drawn.values())


@pytest.mark.parametrize("training", ["weights", "outputs"])
@pytest.mark.parametrize("prediction", ["weights", "outputs"])
def test_ffg_w_draws_weights_or_outputs_as_configured(training: str, prediction: str, tiny_images: FitData) -> None:
    chosen = {"training_draws": training, "prediction_draws": prediction}
    learner = RandomWeights(spec("ffg_w", "classification", **chosen), Seed(0)).eval()
    noise = learner.noise(1, 5, Seed(1).generator())
    assert {name.endswith(":outputs") for name in noise} == {training == "outputs"}
    assert learner.noise_steps(5) >= 1  # type: ignore[operator]
    inputs = torch.randn(1, 1, 8, 8, generator=Seed(1).generator()).expand(2, -1, -1, -1)
    outputs = learner.drawn_outputs(inputs, 3, Seed(2))
    assert torch.allclose(outputs[:, 0], outputs[:, 1], atol=1e-5) == (
        prediction == "weights"
    )  # equal rows, one network
    state = fitted("ffg_w", tiny_images, **chosen)
    assert RandomWeightsPosterior.from_state(state).learner.spec.config.training_draws == training


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("method", ["ffg_u", "fcg_u", "ensemble_u", "ffg_w", "fcg_w"])
def test_a_prediction_is_the_mixture_of_single_draws(method: str, task: str) -> None:
    learner = learner_of(method, task).eval()
    inputs, alone = torch.randn(6, *learner.spec.input_shape, generator=Seed(1).generator()), []
    with torch.no_grad():
        predictive = learner.predict(inputs, rng=Seed(2))
        for k in range(4):
            noise = {n: v[0] for n, v in learner.net.draw(1, Seed(2).fold("draw", k).generator()).items()}
            member = {} if learner.net.members is None else {"member": learner.net.turns(k, 1)[0]}
            alone.append(learner.net(inputs, noise | member))
    truth = torch.stack(alone)
    assert truth.std(0).max() > 1e-6
    drawn, truth = (
        (predictive.draw_mean, truth) if task == "regression" else (predictive.draw_log_probs, truth.log_softmax(-1))
    )
    torch.testing.assert_close(drawn, truth, atol=1e-5, rtol=1e-5)


def test_running_means_are_near_the_means_of_training_rows_under_fresh_draws(tiny_images: FitData) -> None:
    state = fitted("ffg_u", tiny_images, network={**RANDOM_IMAGES["network"], "norm": "batch"})
    net, first = RandomWeightsPosterior.from_state(state).learner.net, list[Tensor]()
    norm = next(m for m in net.network.modules() if isinstance(m, torch.nn.BatchNorm2d))
    norm.register_forward_hook(lambda _m, given, _o: first.append(given[0].mean((0, 2, 3))))
    with torch.no_grad():
        for k in range(20):
            noise = {n: v[0] for n, v in net.draw(1, Seed(k).generator()).items()}
            net(tiny_images.tensors("train")[0], noise)
    draws = torch.stack(first)  # [draw, channel]
    spread = draws.std(0) + 0.02 * draws.abs()
    assert ((norm.running_mean - draws.mean(0)).abs() <= 4 * spread).all() and norm.num_batches_tracked == 10


def test_weight_space_means_start_at_the_end_of_a_trajectory(tiny_images: FitData) -> None:
    trajectory = fit("sgd", "trajectory", tiny_images, network=RANDOM_IMAGES["network"])
    training = {**RANDOM_IMAGES["training"], "epochs": 1, "optimiser": {"name": "sgd", "lr": 1e-12}}
    state = fit("ffg_w", "student", tiny_images, {"trajectory": [trajectory]}, training=training)
    last = trajectory.tensors["head.weight"][-1]
    torch.testing.assert_close(state.tensors["net.layers.head.mean"][:, :-1], last)
    assert METHODS["fcg_w"].stages["student"].needs == {"trajectory": "one_to_one"}
    needs = METHODS["ensemble_u"].stages["student"].needs
    assert needs == {"student": "one_to_one"}, "inducing weights start at no trajectory"


def test_the_weights_of_a_method_have_its_kind() -> None:
    with pytest.raises(ConfigError, match=r"^weights\.kind must be ensemble_u, got 'ffg_u'$"):
        METHODS["ensemble_u"].stages["student"].validate_sources(config_of("ffg_u", "regression"), {})


@pytest.mark.parametrize("method", ["ffg_u", "ffg_w", "fcg_w"])
def test_a_network_may_have_a_random_last_layer_alone(tiny_images: FitData, method: str) -> None:
    """The trunk's weights are points, which are fitted and have no noise."""
    learner = RandomWeightsPosterior.from_state(fitted(method, tiny_images, layers={"trunk.*": None})).learner
    assert sorted(learner.net.layers) == ["head"]
    noise = learner.noise(1, 2, Seed(0).generator())
    assert noise and all(name.startswith("head:") for name in noise)
    fresh = RandomWeights(learner.spec, Seed(4).fold("weights")).net.network.trunk
    pairs = zip(learner.net.network.trunk.parameters(), fresh.parameters(), strict=True)
    moved = [float((now - before).detach().abs().max()) for now, before in pairs if now.ndim > 1]
    assert len(moved) > 1 and min(moved) > 0
    predictive = learner.predict(torch.randn(2, 1, 8, 8, generator=Seed(1).generator()), rng=Seed(0))
    assert (predictive.draw_log_probs.std(0) > 0).all()

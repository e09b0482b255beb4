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
from bdl_pipe.inducing.methods import ENSEMBLE_U, FCG_W, FFG_U, FFG_W, RandomWeightsPosterior
from bdl_pipe.method import Method
from bdl_pipe.networks.normalisation import refresh_batch_norm
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.seeds import Seed
from bdl_pipe.training.learner import FitResult
from tests.cases import RANDOM, RANDOM_IMAGES, config_of, fit


def spec(method: str, task: str, **changes: Any) -> RandomSpec:
    config = config_of(method, task, **changes)
    shape = (1, 8, 8) if task == "classification" else (4,)
    return RandomSpec(config, shape, 3 if task == "classification" else 1, task)  # type: ignore[arg-type]


def fitted(method: Method, data: FitData, **changes: Any) -> State:
    return fit(method.name, "student", data, rng=Seed(4), **changes)


def at(learner: RandomWeights, batch: int, epoch: float) -> dict[str, Tensor]:
    noise = {k: v[0] for k, v in learner.noise(1, batch, Seed(1).generator()).items()}
    return noise | {k: v[0] for k, v in learner.scheduled(torch.tensor([epoch])).items()}


@pytest.mark.parametrize("function_space", [False, True])
def test_the_loss_is_the_negative_bound_per_row(function_space: bool) -> None:
    learner = RandomWeights(spec("ffg_u", "regression", function_space=function_space), Seed(0)).double()
    inputs, targets = torch.randn(7, 4).double(), torch.randn(7, 1).double()
    noise = at(learner, 7, 3.0)
    found = learner(inputs, targets, 3, noise)
    given = {k: v.double() for k, v in noise.items() if k != "kl_weight"}
    mean = learner.net(inputs, given)
    truth = torch.distributions.Normal(mean, learner.likelihood.log_variance.exp().sqrt()).log_prob(targets).mean()
    divergence = learner.net.kl(3 if function_space else None)
    torch.testing.assert_close(found, -truth + divergence / 3)
    assert (learner.net.kl(3) - learner.net.kl(None)).abs() > 1  # four inputs and a bias, three rows


def test_a_shared_size_of_0_is_refused_when_the_section_is_read() -> None:
    with pytest.raises(ConfigError, match=r"^methods\.ffg_u\.shared must be > 0 or null, got \(0, 3\)$"):
        spec("ffg_u", "regression", shared=[0, 3])


def test_finishing_a_fit_without_batch_norm_builds_no_network(
    tiny_table: FitData, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, asked = fitted(FFG_U, tiny_table), spec("ffg_u", "regression")
    monkeypatch.setattr(methods, "RandomWeights", None)
    result = FitResult([state.tensors], 1, 0.0)
    assert RandomWeightsPosterior.finish(asked, result, tiny_table, Seed(0)) is state.tensors


def test_batch_norm_statistics_are_refreshed_without_a_graph(tiny_images: FitData) -> None:
    state = fitted(FFG_U, tiny_images)
    learner = RandomWeightsPosterior.from_state(state).learner
    graphs = list[bool]()
    for layer in learner.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.register_forward_hook(lambda *hooked: graphs.append(hooked[2].requires_grad))
    refresh_batch_norm(learner.net, tiny_images.tensors("train")[0], 40)
    assert graphs == [False] * 8  # two layers, four batches


def test_the_kl_weight_rises_linearly() -> None:
    epochs = torch.tensor([0.0, 0.99, 1.0, 1.5, 2.0, 3.0, 9.0])
    found = RandomWeights(spec("ffg_u", "regression", kl_weight=0.5), Seed(0)).scheduled(epochs)["kl_weight"]
    torch.testing.assert_close(found, torch.tensor([0, 0, 0, 0.125, 0.25, 0.5, 0.5]))
    step = RandomWeights(spec("ffg_u", "regression", annealing={"start": 1.0, "end": 1.0}), Seed(0))
    assert step.scheduled(epochs)["kl_weight"].tolist() == [0, 0, 1, 1, 1, 1, 1]
    whole = RandomWeights(spec("ffg_u", "regression", annealing=None), Seed(0))
    assert whole.scheduled(epochs)["kl_weight"].tolist() == [1.0] * 7


def test_the_kl_changes_a_fit_unless_it_starts_after_the_last_epoch(tiny_table: FitData) -> None:
    how = {"training": RANDOM["training"] | {"early_stopping": None}}
    late = fitted(FFG_U, tiny_table, annealing={"start": 4.0, "end": 4.0}, **how)
    never = fitted(FFG_U, tiny_table, kl_weight=0.0, **how)
    always = fitted(FFG_U, tiny_table, annealing=None, **how)
    assert all(torch.equal(late.tensors[k], never.tensors[k]) for k in late.tensors)
    assert any(not torch.equal(late.tensors[k], always.tensors[k]) for k in late.tensors)


@pytest.mark.parametrize("numbers", [1, 2500])
def test_noise_is_drawn_in_parts_of_bounded_size(
    numbers: int, tiny_images: FitData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", numbers)
    seen: list[tuple[int, int]] = []
    draw = RandomWeights.noise

    def watched(self: RandomWeights, steps: int, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        found = draw(self, steps, batch, generator)
        seen.append((steps, sum(v.numel() for v in found.values())))
        return found

    monkeypatch.setattr(RandomWeights, "noise", watched)
    fitted(FFG_U, tiny_images)
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
def test_ffg_w_draws_weights_or_outputs_as_its_section_says(
    training: str, prediction: str, tiny_images: FitData
) -> None:
    chosen = {"training_draws": training, "prediction_draws": prediction}
    learner = RandomWeights(spec("ffg_w", "classification", **chosen), Seed(0)).eval()
    noise = learner.noise(1, 5, Seed(1).generator())
    assert {name.endswith(":outputs") for name in noise} == {training == "outputs"}
    assert learner.noise_steps(5) >= 1  # type: ignore[operator]
    inputs = torch.randn(1, 1, 8, 8, generator=Seed(1).generator()).expand(2, -1, -1, -1)
    found = learner.drawn_outputs(inputs, 3, Seed(2))
    assert torch.allclose(found[:, 0], found[:, 1], atol=1e-5) == (prediction == "weights")  # equal rows, one network
    state = fitted(FFG_W, tiny_images, **chosen)
    assert RandomWeightsPosterior.from_state(state).learner.spec.config.training_draws == training


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("method", ["ffg_u", "fcg_u", "ensemble_u", "ffg_w", "fcg_w"])
def test_a_prediction_is_the_mixture_of_single_draws(method: str, task: str) -> None:
    learner = RandomWeights(spec(method, task), Seed(0)).eval()
    inputs = torch.randn(6, *learner.spec.input_shape, generator=Seed(1).generator())
    with torch.no_grad():
        found = learner.predict(inputs, rng=Seed(2))
        alone = []
        for k in range(4):
            noise = {n: v[0] for n, v in learner.net.draw(1, Seed(2).fold("draw", k).generator()).items()}
            if learner.net.members is not None:
                noise["member"] = learner.net.turns(k, 1)[0]
            alone.append(learner.net(inputs, noise))
    assert isinstance(found, (Categorical, Gaussian)) and torch.stack(alone).std(0).max() > 1e-6
    drawn = found.draw_mean if isinstance(found, Gaussian) else found.draw_log_probs
    truth = torch.stack(alone) if isinstance(found, Gaussian) else torch.stack(alone).log_softmax(-1)
    torch.testing.assert_close(drawn, truth, atol=1e-5, rtol=1e-5)


def test_running_means_are_near_the_means_of_training_rows_under_fresh_draws(tiny_images: FitData) -> None:
    network = {**RANDOM_IMAGES["network"], "norm": "batch"}
    state = fitted(FFG_U, tiny_images, network=network)
    again = fitted(FFG_U, tiny_images, network=network)
    assert all(torch.equal(state.tensors[k], again.tensors[k]) for k in state.tensors)
    learner = RandomWeightsPosterior.from_state(state).learner
    inputs, _ = tiny_images.tensors("train")
    first: list[Tensor] = []
    layers = [m for m in learner.net.network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    hook = layers[0].register_forward_hook(lambda _m, given, _o: first.append(given[0]))
    with torch.no_grad():
        for k in range(20):
            learner.net(inputs, {n: v[0] for n, v in learner.net.draw(1, Seed(k).generator()).items()})
    hook.remove()
    draws = torch.stack([x.mean((0, 2, 3)) for x in first])  # [draw, channel]
    spread = draws.std(0) + 0.02 * draws.abs()
    assert ((layers[0].running_mean - draws.mean(0)).abs() <= 4 * spread).all()  # type: ignore[operator]
    assert layers[0].num_batches_tracked == 10  # type: ignore[comparison-overlap]


def test_weight_space_means_start_at_the_end_of_a_trajectory(tiny_images: FitData) -> None:
    trajectory = fit("sgd", "trajectory", tiny_images, network=RANDOM_IMAGES["network"])
    how = {**RANDOM_IMAGES["training"], "epochs": 1, "optimiser": {"name": "sgd", "lr": 1e-12}}
    state = fit("ffg_w", "student", tiny_images, {"trajectory": [trajectory]}, training=how)
    last = trajectory.tensors["head.weight"][-1]
    torch.testing.assert_close(state.tensors["net.layers.head.mean"][:, :-1], last)
    assert ENSEMBLE_U.stages["student"].needs == {"student": "one_to_one"}, "inducing weights start at no trajectory"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"draws": 5}, r"draws must be a multiple of weights.members \(2\)"),
        ({"validation_draws": 3}, "validation_draws must be a multiple"),
        ({"annealing": {"start": 2.0, "end": 1.0}}, r"annealing.end must be >= start \(2.0\)"),
        ({"noise_variance": 0.0}, "noise_variance must be > 0"),
    ],
)
def test_a_section_that_breaks_a_rule_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of("ensemble_u", "regression", **change)


def test_a_section_of_another_kind_is_refused() -> None:
    config = config_of("ffg_u", "regression")
    check = ENSEMBLE_U.stages["student"].validate_sources
    assert check is not None
    with pytest.raises(ConfigError, match=r"^weights\.kind must be ensemble_u, got 'ffg_u'$"):
        check(config, {})


@pytest.mark.parametrize("method", [FFG_U, FFG_W, FCG_W], ids=lambda m: m.name)
def test_a_network_may_have_a_random_last_layer_alone(tiny_images: FitData, method: Method) -> None:
    """The trunk's weights are points, which are fitted and have no noise."""
    state = fitted(method, tiny_images, layers={"trunk.*": None})
    learner = RandomWeightsPosterior.from_state(state).learner
    assert sorted(learner.net.layers) == ["head"]
    noise = learner.noise(1, 2, Seed(0).generator())
    assert noise and all(name.startswith("head:") for name in noise)
    fresh = RandomWeights(learner.spec, Seed(4).fold("weights")).net.network.trunk
    pairs = zip(learner.net.network.trunk.parameters(), fresh.parameters(), strict=True)
    moved = [float((now - before).detach().abs().max()) for now, before in pairs if now.ndim > 1]
    assert len(moved) > 1 and min(moved) > 0
    predictive = learner.predict(torch.randn(2, 1, 8, 8, generator=Seed(1).generator()), rng=Seed(0))
    assert isinstance(predictive, Categorical) and (predictive.draw_log_probs.std(0) > 0).all()

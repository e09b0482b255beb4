"""Protocols that judge a coreset: ridge regression against scikit-learn, chains against a known posterior."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.nn.functional import conv2d

from bdl_pipe import config, registry
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.protocols import chains, network
from bdl_pipe.coresets.protocols.scale import GRID
from bdl_pipe.coresets.shared.init import Coreset, balanced
from bdl_pipe.coresets.vbpc import closed_form as vbpc
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.posterior import NetworkDraws
from bdl_pipe.predictive import Categorical
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from tests.cases import CONFIGS, HEAD, TRAINED_ON_CORESET, fit
from tests.resuming import Watched, resumed, same_bits

from .cases import tiny_data

NETWORK = HEAD["network"]
TRAINED = TRAINED_ON_CORESET | {
    "steps": 8,
    "optimiser": {"name": "adam", "lr": 3.0e-3, "schedule": "one_cycle"},
    "augmentation": {"choose": "one", "operations": {"rotate": 15.0, "noise": 0.1}},
    "logit_scale": 4.0,
}


def constant(step_size: float) -> dict[str, Any]:
    return {"name": "constant", "value": step_size}


CHAINS = CONFIGS["coreset_sgmcmc", "classification"] | {"chains": 3, "start_sd": 0.1}
HMC = {"kernel": {"name": "hmc", "leapfrogs": 3}, "step_size": constant(0.002)}


def coreset() -> State:
    return balanced(tiny_data(), 2, 1.0, rng=Seed(0)).state(tiny_data(), {"coreset": "random_coreset", "ipc": 2})


SECTIONS = {"nn": TRAINED, "krr": TRAINED | {"ridge": 1e-3}, "sgmcmc": CHAINS}


def fitted(
    name: str, report: Report | None = None, stored: State | None = None, data: FitData | None = None, **changes: Any
) -> State:
    changes, inputs = SECTIONS.get(name, {}) | changes, {"coreset": [stored or coreset()]}
    return fit(f"coreset_{name}", "student", data or tiny_data(), inputs, rng=Seed(3), report=report, **changes)


def predicted(state: State) -> Categorical:
    return NetworkDraws.from_state(state).predict(tiny_data().tensors("validation")[0])


def normals(*shapes: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(*s, generator=Seed(number).generator()) for number, s in enumerate(shapes))


@pytest.mark.parametrize(("rows", "width"), [(6, 20), (30, 5)])
def test_the_ridge_head_equals_scikit_learn(rows: int, width: int) -> None:
    """It also equals VBPC's posterior mean at λ = ρβ/γ."""
    (features, labels), ridge = normals((rows, width), (rows, 3)), 0.1
    penalty = ridge * float(features.double().square().sum(1).mean())
    theirs = Ridge(alpha=penalty, fit_intercept=False, solver="svd", tol=1e-12)
    theirs.fit(features.double().numpy(), labels.double().numpy())
    head = network.ridge_head(features, labels, ridge)
    np.testing.assert_allclose(head.numpy().T, theirs.coef_, rtol=1e-8, atol=1e-10)
    mean = vbpc.solve(features.double(), labels.double(), rho=penalty, gamma=1.0, beta=1.0).mean
    torch.testing.assert_close(head, mean, rtol=1e-9, atol=1e-11)
    assert not np.allclose(network.ridge_head(features, labels, 2 * ridge).numpy().T, theirs.coef_, rtol=1e-3)


def test_nan_features_are_refused() -> None:
    with pytest.raises(Diverged):
        network.ridge_head(torch.full((3, 4), torch.nan), torch.zeros(3, 2), 0.1)


def test_krr_replaces_the_trained_head_by_the_ridge_solution() -> None:
    state, trained, stored = fitted("krr"), fitted("nn", logit_scale=1.0), Coreset.from_state(coreset())
    draws = NetworkDraws.from_state(trained)
    skeleton = draws.spec.build(Seed(0)).eval()
    skeleton.load_state_dict({name: value[0] for name, value in draws.weights.items()})
    with torch.no_grad():
        weight = 4.0 * network.ridge_head(skeleton.trunk(stored.images), stored.labels, 1e-3).T
    torch.testing.assert_close(state.tensors["head.weight"][0].double(), weight, rtol=1e-4, atol=1e-5)
    assert float(state.tensors["head.bias"].abs().max()) == 0
    trunk = [name for name in state.tensors if name.startswith("trunk.")]
    assert trunk and all(torch.equal(state.tensors[name], trained.tensors[name]) for name in trunk)


def test_a_larger_logit_scale_sharpens_and_changes_no_predicted_class() -> None:
    soft, sharp = (predicted(fitted("nn", logit_scale=scale)) for scale in (1.0, 8.0))
    assert torch.equal(soft.mean.argmax(1), sharp.mean.argmax(1))
    assert float(sharp.mean.max(1).values.mean()) > float(soft.mean.max(1).values.mean()) + 0.05


def test_training_on_the_coreset_lowers_the_loss() -> None:
    report = Watched()
    fitted("nn", report, steps=60, batch=6, augmentation=None)
    assert report.seen[-1]["loss"] < 0.5 * report.seen[0]["loss"]


def nothing(data: FitData) -> Examples:
    return Examples(data.validation.inputs[:0], data.validation.targets[:0])


def whole(data: FitData) -> FitData:
    """The same data for a final fit: validation rows are among the training rows, and separate only in ``search``."""
    rows = [np.concatenate([getattr(data.train, n), getattr(data.validation, n)]) for n in ("inputs", "targets")]
    other = replace(data.transform, mean=data.transform.mean + 0.2)  # the search's transform, which a fit must not use
    return replace(data, train=Examples(*rows), validation=nothing(data), search=replace(data, transform=other))


@pytest.mark.parametrize("name", ["nn", "krr", "sgmcmc", "vi", "bma"])
def test_the_chosen_logit_scale_has_the_least_nll_on_validation_rows(name: str) -> None:
    """No point near it on the grid is better, by a fit at each; a final fit uses the validation rows of its search."""
    data, chosen = tiny_data(), fitted(name, logit_scale="validation")
    inputs, targets = data.tensors("validation")
    scale = chosen.config["logit_scale"]
    at, posterior = GRID.index(scale), fitted(name, logit_scale=scale)
    assert same_bits(State(posterior.tensors, {}), State(chosen.tensors, {})) and "logit_scale" not in posterior.config

    def loss(state: State) -> float:
        return -float(registry.posterior_of(state).predict(inputs, rng=Seed(0)).log_prob(targets).mean())

    near = [k for k in (at - 4, at - 1, at + 1, at + 4) if 0 <= k < len(GRID)]
    assert loss(chosen) <= min(loss(fitted(name, logit_scale=GRID[k])) for k in near) + 1e-6
    assert same_bits(chosen, fitted(name, data=whole(data), logit_scale="validation"))


@pytest.mark.parametrize("name", ["krr", "vi"])
def test_labels_four_times_as_large_give_a_quarter_of_the_logit_scale(name: str) -> None:
    """The trunk is not trained, so that the labels have no other influence."""
    trained = CONFIGS["coreset_vi", "classification"]["student"] | {"steps": 0}
    still = {"steps": 0} if name == "krr" else {"student": trained}
    larger = with_tensors(coreset(), labels=4 * coreset().tensors["labels"])
    small, large = (fitted(name, stored=s, logit_scale="validation", **still).config for s in (coreset(), larger))
    assert small["logit_scale"] == 4 * large["logit_scale"]
    assert name == "krr" or small["posterior"] == "vbpc"


@pytest.mark.parametrize("changes", [{"augmentation": TRAINED["augmentation"]}, HMC], ids=["augmented", "hmc"])
def test_stopped_chains_resume_to_the_same_bits(changes: dict[str, Any]) -> None:
    whole = fitted("sgmcmc", **changes)
    assert same_bits(whole, resumed(lambda report: fitted("sgmcmc", report, **changes), 5))


def test_a_draw_with_batch_norm_has_the_statistics_of_the_coreset_at_its_own_weights() -> None:
    """The chain's weights are of one that normalises each batch; statistics against float64, not of another draw."""
    batch, own = (fitted("sgmcmc", network=NETWORK | {"norm": norm}).tensors for norm in ("batch", "batch_stats"))
    assert all(torch.equal(batch[name], own[name]) for name in own)
    x = Coreset.for_fit(coreset(), tiny_data()).images
    errors = []
    for k in range(len(batch["head.bias"])):
        inputs = conv2d(x.double(), batch["trunk.0.weight"][k].double(), batch["trunk.0.bias"][k].double(), padding=1)
        variance, mean = torch.var_mean(inputs, (0, 2, 3))
        torch.testing.assert_close(batch["trunk.1.running_mean"][k].double(), mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(batch["trunk.1.running_var"][k].double(), variance, rtol=1e-4, atol=1e-5)
        errors.append(
            float((batch["trunk.1.running_var"].double() - variance).abs().sum(1).topk(2, largest=False)[0][1])
        )
    assert min(errors) > 1e-3  # another draw's


@pytest.mark.parametrize("changes", [{}, HMC, {"start_sd": None}])
def test_the_draws_are_ordered_chain_by_chain(changes: dict[str, Any]) -> None:
    state = fitted("sgmcmc", **changes)
    assert all(len(value) == 12 for value in state.tensors.values())  # 3 chains of (12 - 4) / 2
    weights = torch.cat([value.flatten(1) for value in state.tensors.values()], 1).reshape(3, 4, -1)
    within = (weights[:, 1:] - weights[:, :-1]).norm(dim=-1).mean()
    between = (weights[1:] - weights[:-1]).norm(dim=-1).mean()
    assert between > 3 * within  # neighbours in a chain are nearer than chains are to each other
    summary = chains.summarise([[state]], [tiny_data()], config.read(chains.ChainsConfig, CHAINS | changes, "m"))
    assert "rhat_prediction" in summary.metrics
    torch.testing.assert_close(predicted(state).mean.sum(1), torch.ones(60), rtol=1e-5, atol=1e-5)


def test_hmc_reports_the_share_of_accepted_proposals() -> None:
    small, large = Watched(), Watched()
    for step_size, report in ((0.002, small), (0.2, large)):
        fitted("sgmcmc", report, **HMC | {"step_size": constant(step_size)}, prior_precision=100.0)
    assert small.seen[-1]["acceptance"] > 0.9 and large.seen[-1]["acceptance"] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["sghmc", "hmc"])
def test_draws_under_a_strong_prior_have_the_variance_of_the_prior(kernel: str) -> None:
    """λ = 1e4 and a coreset of six rows: weights are N(0, T/λ) but for a thousandth of it; 4 chains, ~1,000 weights.

    The variance over weights of the last draws is within 10 % (Z > 4 with 2,000 effective numbers); T/λ of twice the
    temperature is not.
    """
    numbers, steps = ({"friction": 0.1}, 200) if kernel == "sghmc" else ({"leapfrogs": 10}, 15)  # to forget the start
    changes = {"kernel": {"name": kernel, **numbers}, "step_size": constant(1e-3), "start_sd": 3 * 0.00005**0.5}
    thinning = {"steps": steps, "burn_in": 0, "every": steps}
    law = {"chains": 4, "prior_precision": 1e4, "temperature": 0.5, "thinning": thinning}
    weights = torch.cat([value.flatten() for value in fitted("sgmcmc", **changes, **law).tensors.values()]).double()
    ratio = float(weights.square().mean()) / 0.00005
    assert abs(ratio - 1) < 0.1 < abs(ratio / 2 - 1)


def test_a_logit_scale_of_no_validation_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a number, because there are no validation rows"):
        fitted("nn", data=replace(tiny_data(), validation=nothing(tiny_data())), logit_scale="validation")


LABELS = r"finite real labels \[row, class\] "


def other_transform(state: State) -> State:
    """The coreset as data with another mean would store it."""
    data = tiny_data()
    moved = replace(data.transform, mean=data.transform.mean + 0.1)
    return Coreset.from_state(state).state(replace(data, transform=moved), {})


UNFIT: dict[str, tuple[Callable[[State], State], str]] = {
    "shape": (lambda s: with_tensors(s, images=torch.zeros(6, 1, 9, 8)), r"of inputs of \(1, 8, 8\), got \(1, 9, 8\)"),
    "classes": (lambda s: with_tensors(s, labels=torch.zeros(6, 4)), LABELS + r"of \(6, 3\), got 'float32 \(6, 4\)'"),
    "numbers": (lambda s: with_tensors(s, labels=s.tensors["classes"]), LABELS + r"of \(6, 3\), got 'int64 \(6,\)'"),
    "whole numbers": (lambda s: with_tensors(s, labels=s.tensors["labels"].long()), r"got 'int64 \(6, 3\)'"),
    "not finite": (lambda s: with_tensors(s, labels=s.tensors["labels"] / 0), "must be of a coreset with finite"),
    "transform": (other_transform, "input must be of a coreset whose images have the transform of this data set"),
    "no coreset": (lambda s: State({"images": s.tensors["images"]}, {}), r"lacks \['labels', 'classes', 'raw'\]"),
}


def with_tensors(state: State, **tensors: torch.Tensor) -> State:
    return State({**state.tensors, **tensors}, state.config)


@pytest.mark.parametrize("name", ["nn", "krr", "sgmcmc", "vi"])
@pytest.mark.parametrize("case", UNFIT)
def test_a_coreset_that_does_not_fit_the_data_is_refused_before_the_first_step(name: str, case: str) -> None:
    change, message = UNFIT[case]
    with pytest.raises(ConfigError, match=message) as caught:
        fitted(name, Never(), stored=change(coreset()))
    assert str(caught.value).startswith("input must be of a coreset") and "\n" not in str(caught.value)


class Never(Silent):
    """A report that no step may reach."""

    def __call__(self, step: int, total: int, metrics: Any = None) -> None:
        raise AssertionError("a step was taken")


def test_raw_images_that_differ_by_rounding_are_accepted() -> None:
    stored = coreset()
    moved = with_tensors(stored, raw=stored.tensors["raw"] * (1 + 1e-5))
    assert torch.equal(Coreset.for_fit(moved, tiny_data()).images, stored.tensors["images"])


def test_the_error_of_a_diverged_chain_suggests_a_lower_step_size() -> None:
    with pytest.raises(Diverged, match=r"lower step_size.value from 1e\+06 to (less than )?\d"):
        fitted("sgmcmc", kernel={"name": "sghmc", "friction": 0.1}, step_size=constant(1e6), prior_precision=1e6)

"""From a model to its posterior: rows, head, frozen weights, memory order, regression, and stored posteriors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bdl_pipe
from bdl_pipe import ArtifactError, Gaussian, ModulePosterior, Seed, UserError, bayesianise, posterior_of
from bdl_pipe.method import ModelFit
from bdl_pipe.own_model import module as modules
from bdl_pipe.own_model.trunk import Layout
from tests.resuming import Watched

from .models import Function, ResNet, Scaled, Text, image_loader, images, text_loader, texts

ROWS = 90


def small(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, outputs))


def table(rows: int = ROWS) -> Any:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, generator=generator)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0)), 30)


def curve(rows: int = ROWS, outputs: int = 1, batch: int = 30) -> tuple[Any, Tensor]:
    """Return targets near 50 with deviation 5, and the inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, generator=generator)
    y = 50 + 5 * torch.sin(x[:, :outputs]) + 0.5 * torch.randn(rows, outputs, generator=generator)
    return DataLoader(TensorDataset(x, y), batch), x


def test_inputs_packed_into_rows_are_unpacked_with_equal_values_and_types() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = {
        "ids": torch.randint(-5, 2**24, (3, 2, 2), generator=generator),
        "mask": torch.tensor([[True, False], [False, True], [True, True]]),
        "image": torch.randn(3, 1, 4, generator=generator),
        "one": torch.tensor([1, 2, 3], dtype=torch.int32),
    }
    layout = Layout.of(batch, "here")
    rows = layout.pack(batch, "here")
    assert rows.shape == (3, *layout.row) == (3, 1, 1, 11) and rows.dtype == torch.float32
    back = layout.unpack(rows)
    assert isinstance(back, dict)
    assert {name: value.dtype for name, value in back.items()} == {k: v.dtype for k, v in batch.items()}
    assert all(torch.equal(back[name], values) for name, values in batch.items())
    alone = Layout.of(batch["image"], "here")
    unpacked = alone.unpack(alone.pack(batch["image"], "here"))
    assert isinstance(unpacked, Tensor) and torch.equal(unpacked, batch["image"])


class Twice(nn.Module):
    """A model that calls one linear layer twice and another layer never, and returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Linear(8, 3)
        self.again, self.spare = nn.Linear(4, 4), nn.Linear(8, 3)
        self.wide = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.answer(self.wide(F.relu(self.again(F.relu(self.again(x))))).tanh())}


def test_the_head_is_the_layer_called_last_and_another_layer_is_refused() -> None:
    posterior = bayesianise(Twice(), "deterministic", table())
    assert posterior.about.head == "answer"
    with pytest.raises(UserError, match=r"^head must be the last layer of the model and linear"):
        bayesianise(Twice(), "deterministic", table(), head="spare")
    assert bayesianise(Twice(), "deterministic", table(), head="answer").about.digest == posterior.about.digest


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_regression_predicts_in_target_units_with_the_variance_of_its_errors(outputs: int) -> None:
    loader, x = curve(outputs=outputs)
    y = loader.dataset.tensors[1]
    net = small(outputs)
    nn.init.constant_(net[-1].bias, 50.0)
    model = nn.Sequential(net, Function(lambda y: y.squeeze(-1))) if outputs == 1 else net
    predictive = bayesianise(model, "deterministic", loader).predict(x)
    with torch.no_grad():
        means = net(x)
    torch.testing.assert_close(predictive.mean, means.double(), rtol=1e-5, atol=1e-5)
    errors = (y - means).double().square().mean(0)
    torch.testing.assert_close(predictive.variance, errors.expand(ROWS, -1), rtol=1e-4, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vbll", "swag", "ciber_last", "sgmcmc", "ffg_u", "kfac_laplace"])
def test_a_regression_by_each_method_beats_a_constant_prediction(method: str) -> None:
    loader, x = curve(200, batch=50)
    model = small(1)
    nn.init.constant_(model[-1].bias, 50.0)
    posterior = bayesianise(model, method, loader, epochs=50, lr=1e-2 if method != "sgmcmc" else 3e-2)
    predictive = posterior.predict(x)
    y = loader.dataset.tensors[1]
    constant = Gaussian(y.mean().expand(1, 200, 1), y.var().expand(1, 200, 1))
    assert predictive.log_prob(y).mean() > constant.log_prob(y).mean() + 0.3
    joint = posterior.joint(x[:4].reshape(2, 2, 4))
    assert joint.log_prob(y[:4].reshape(2, 2, 1)).isfinite().all()


def test_the_predictive_has_the_means_and_log_variances_of_the_model() -> None:
    loader, x = curve()
    model = small(2)
    nn.init.constant_(model[-1].bias, 3.0)
    predictive = bayesianise(model, "deterministic", loader).predict(x)
    with torch.no_grad():
        mean, log_variance = model(x).double().chunk(2, -1)
    torch.testing.assert_close(predictive.mean, mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(predictive.variance, log_variance.exp(), rtol=1e-4, atol=0)


@pytest.mark.slow
def test_frozen_weights_are_unchanged_and_a_note_names_them() -> None:
    model = small()
    model[0].requires_grad_(False)
    posterior = bayesianise(model, "swag", table(), epochs=2)
    stored = posterior.inner.state().tensors
    assert not any(name.startswith("trunk.module.0.") for name in stored)  # the model keeps frozen weights
    assert (stored["trunk.module.2.weight"] != model[2].weight).any()
    assert posterior.notes == ("the weights 0.weight, 0.bias are not changed, since they need no gradient",)
    chains = bayesianise(model, "sgmcmc", table(), epochs=1, chains=1)
    assert not any(name.startswith("trunk.module.0.") for name in chains.inner.state().tensors)
    assert torch.isfinite(chains.predict(torch.zeros(2, 4)).mean).all()


class Viewed(nn.Module):
    """Convolutions whose output is reshaped by ``view``, which fails in any memory order except the plain one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, 2, padding=1)
        self.fc = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv2(F.relu(self.conv1(x)))).view(len(x), -1))


class Looking(nn.Module):
    """A model that reads the type of a layer's weight, like the patch embedding in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.fc = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.two(self.one(x.to(self.one.weight.dtype)).relu()).tanh())


@pytest.mark.slow
def test_a_layer_whose_weight_the_model_reads_stays_a_point() -> None:
    posterior = bayesianise(Looking(), "ffg_w", table(), epochs=1)
    assert posterior.about.config["layers"] == {"trunk.module.one": None}
    assert posterior.notes == ("ffg_w cannot convert one: these weights keep point estimates",)
    assert bayesianise(Looking(), "ffg_u", table(), epochs=1).notes == ()


@pytest.mark.slow
def test_a_model_that_views_outputs_of_convolutions_keeps_plain_memory_order(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = bayesianise(Viewed(), "swag", image_loader(100), epochs=1)
    assert posterior.about.plain_order
    assert torch.isfinite(posterior.predict(images(5)[0]).mean).all()
    monkeypatch.setattr(modules, "_runs_channels_last", lambda *_: True)
    with pytest.raises(RuntimeError, match="view"):
        bayesianise(Viewed(), "swag", image_loader(100), epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["kfac_laplace", "swag", "d_vbll"])
@pytest.mark.parametrize("kind", [ResNet, Text])
def test_a_saved_posterior_is_loaded_to_the_bit(tmp_path: Path, method: str, kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind()
    loader = text_loader(100) if kind is Text else image_loader(100)
    held = (text_loader if kind is Text else image_loader)(60, 2)
    inputs: Any = (texts if kind is Text else images)(20, 1)[0]
    posterior = bayesianise(model, method, loader, epochs=None if method == "kfac_laplace" else 1).recalibrated(held)
    posterior.save(tmp_path / "mine")
    again = ModulePosterior.load(tmp_path / "mine", model)
    assert torch.equal(again.predict(inputs).mean, posterior.predict(inputs).mean)
    assert again.about == posterior.about
    other = ModulePosterior.from_state(again.state())
    assert torch.equal(other.predict(inputs).mean, posterior.predict(inputs).mean)
    assert isinstance(posterior_of(posterior.state()), ModulePosterior)
    fresh = kind()  # other weights, which do not matter if the posterior stores all of its weights
    if method == "kfac_laplace":
        with pytest.raises(ArtifactError, match=r"not the model that .*a frozen trunk"):
            ModulePosterior.load(tmp_path / "mine", fresh)
    else:
        loaded = ModulePosterior.load(tmp_path / "mine", fresh).predict(inputs).mean
        assert torch.equal(loaded, posterior.predict(inputs).mean)
    with pytest.raises(ArtifactError, match=r"has the shape \[4.*, expected \[3"):
        ModulePosterior.load(tmp_path / "mine", kind(4))


def test_a_state_whose_module_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = bayesianise(small(), "deterministic", table()).state()
    monkeypatch.setattr(modules, "_known", {})
    rule = r"^network: the module \w{16} is not known in this process: call bdl_pipe.bayesianise with the model, or"
    with pytest.raises(UserError, match=rule):
        posterior_of(state)


def test_a_prediction_passes_at_most_128_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    posterior = bayesianise(small(), "kfac_laplace", table(300))
    x = torch.randn(300, 4)
    monkeypatch.setattr(nn.Tanh, "forward", lambda _, h: seen.append(len(h)) or torch.tanh(h))
    mean = posterior.predict(x).mean
    assert seen == [128, 128, 44]  # one pass of the trunk for all draws
    torch.testing.assert_close(mean[200:], posterior.predict(x[200:]).mean)


def test_a_fit_reports_its_progress_and_saves_no_checkpoint() -> None:
    report = Watched(1)  # a fit that asks whether a checkpoint is due, and saves one, is killed
    bayesianise(small(), "swag", table(), epochs=2, report=report)
    assert report.steps[0] == (1, 6) and report.steps[-1][0] == report.steps[-1][1]


def test_a_model_is_forgotten_with_its_posterior() -> None:
    posterior = bayesianise(small(), "deterministic", table())
    second = bayesianise(small(), "deterministic", table())
    digest = posterior.about.digest
    assert [key for key, _ in modules._known].count(digest) == 2
    del second
    assert [key for key, _ in modules._known].count(digest) == 1 and posterior_of(posterior.state()) is not None
    del posterior
    assert digest not in [key for key, _ in modules._known]


def test_a_digest_depends_on_layers_settings_shapes_and_frozen_weights() -> None:
    def digest(model: nn.Module) -> str:
        return modules.register(model, Layout.of(torch.zeros(2, 4), ""), torch.zeros(2, 1, 1, 4), None).config.digest

    other, soft, leaky, steep = small(), small(), small(), small()
    with torch.no_grad():
        other[0].weight += 1
    soft[3], leaky[1], steep[1] = nn.Softsign(), nn.LeakyReLU(0.2), nn.LeakyReLU(0.3)
    assert digest(other) == digest(small())  # trained weights do not count: a posterior stores its own
    assert len({digest(model) for model in (small(), soft, leaky, steep, small(4))}) == 5
    other[0].requires_grad_(False)
    frozen = small()
    frozen[0].requires_grad_(False)
    assert digest(frozen) != digest(other)  # frozen weights count: a posterior does not store them


def test_a_last_layer_has_the_hyperparameters_of_the_estimators() -> None:
    fit = ModelFit({}, "classification", 100, 10, 1, None)
    for method in (bdl_pipe.METHODS[name] for name in ("vbll", "d_vbll", "g_vbll")):
        assert method.from_model is not None and method.default is not None
        layer = method.from_model.section(fit)["layer"]
        bias = {} if method.name == "g_vbll" else {"bias": True}  # a head has one, which class means have not
        assert layer == {**method.settings["layer"], "wishart_scale": 1.0, **bias}


@pytest.mark.slow
def test_a_given_rank_number_of_draws_and_random_state_are_used() -> None:
    options = {"config": {"rank": 2, "draws": 5}, "trajectory": {"snapshots": 3}}
    posterior = bayesianise(small(), "swag", table(), epochs=4, **options)
    assert posterior.about.config["rank"] == 2
    assert len(posterior.inner.state().tensors["head.weight"]) == 5
    seeds = [bayesianise(small(), "swag", table(), epochs=1, random_state=s) for s in (0, 0, 1)]
    means = [p.predict(torch.ones(3, 4), rng=Seed(0)).mean for p in seeds]
    assert torch.equal(means[0], means[1]) and not torch.equal(means[0], means[2])


def test_a_plugins_method_of_one_trajectory_can_be_fitted(forgotten_plugins: None) -> None:
    bdl_pipe.register_method(replace(bdl_pipe.METHODS["deterministic"], name="mine"))
    posterior = bayesianise(small(), "mine", table())
    assert posterior.about.method == "mine" and torch.isfinite(posterior.predict(torch.ones(1, 4)).mean).all()


def test_a_fit_that_was_repeated_after_divergence_has_a_note() -> None:
    steady = {"optimiser": {"weight_decay": 0.0}}
    # NaN once the scale has moved by more than 50; a step of Adam moves it by the learning rate
    breaks = Scaled(torch.ones(1), lambda scale: torch.where((scale - 1).abs() > 50, torch.nan, scale))
    model = nn.Sequential(breaks, small())
    posterior = bayesianise(model, "deterministic", table(), epochs=1, lr=100.0, trajectory=steady)
    assert any("diverged and had to be repeated at" in note for note in posterior.notes)

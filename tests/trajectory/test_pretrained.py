"""Weights that were trained without this package: their predictions, and the methods that start from them."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bdl_pipe import plugins
from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.posterior import NetworkSpec, Predictor
from bdl_pipe.registry import METHODS, posterior_of
from bdl_pipe.seeds import Seed
from tests.cases import fit
from tests.conftest import make_tiny_images, make_tiny_table
from tests.networks.test_python_file import TEXT

pytestmark = pytest.mark.slow  # two networks are trained first
RESNET: dict[str, Any] = {"name": "python", "path": "nets.py", "object": "ResNet", "options": {"classes": 3}}
MLP: dict[str, Any] = {"name": "python", "path": "nets.py", "object": "perceptron", "options": {"width": 16}}


def make_table() -> FitData:
    """Enough rows for a network to be better than their mean."""
    return make_tiny_table(400, noise=2.0)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's networks and their trained weights."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("nets.py").write_text(TEXT)
        plugins.load_file("nets.py")
        resnet = trained(
            "ResNet", (1, 8, 8), *make_tiny_images().tensors("train"), nn.CrossEntropyLoss(), 120, classes=3
        )
        save_file(resnet.state_dict(), "resnet.safetensors")
        torch.save({"state_dict": resnet.state_dict(), "epoch": 3}, "resnet.pt")
        # a regression network whose outputs are in the targets' own units
        (inputs, _), targets = make_table().tensors("train"), torch.tensor(make_table().train.targets).float()
        mlp = trained("perceptron", (4,), inputs, targets, nn.MSELoss(), 1500, width=16)
        torch.save(mlp.state_dict(), "mlp.pt")
    return folder


@pytest.fixture(autouse=True)
def there(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


def trained(
    made: str, shape: tuple[int, ...], inputs: Tensor, targets: Tensor, loss: nn.Module, steps: int, **options: Any
) -> nn.Module:
    """Train a module as its user would, without this package."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module: nn.Module = getattr(plugins.module_of_file("nets.py"), made)(shape, **options)
        optimiser = torch.optim.Adam(module.parameters(), lr=1e-2)
        for _ in range(steps):
            rows = torch.randperm(len(inputs))[:40]
            optimiser.zero_grad()
            loss(module(inputs[rows]), targets[rows]).backward()
            optimiser.step()
    return module.eval()


def resnet_weights() -> dict[str, Tensor]:
    return torch.load("resnet.pt")["state_dict"]


def outputs_of(module: nn.Module, weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
    """The outputs of a user's module in float64, without this package."""
    module.load_state_dict(weights)
    with torch.no_grad():
        return module.eval()(inputs).double()


def net(name: str, shape: tuple[int, ...], **options: Any) -> nn.Module:
    return getattr(plugins.module_of_file("nets.py"), name)(shape, **options)


def fitted(data: FitData, **section: Any) -> State:
    """Return the trajectory that ``pretrained`` makes of a file of weights."""
    files = {"network": RESNET, "weights": "resnet.pt"} if data.classes else {"network": MLP, "weights": "mlp.pt"}
    return fit("pretrained", "trajectory", data, rng=Seed(0).fold("t"), **files | section)


def student(method: str, data: FitData, trajectory: State, **changes: Any) -> State:
    return fit(method, "student", data, {"trajectory": [trajectory]}, rng=Seed(0).fold(method), **changes)


def nll(state: State, data: FitData) -> float:
    """Return the validation rows' NLL in the targets' own units."""
    predictor = Predictor(posterior_of(state), data.transform, data.classes)
    predictive = predictor.predict(data.validation.inputs, rng=Seed(1))
    return -float(predictive.log_prob(torch.as_tensor(data.validation.targets)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("file", ["resnet.safetensors", "resnet.pt"])
def test_the_posterior_predicts_the_class_probabilities_of_the_saved_network(file: str) -> None:
    data = make_tiny_images()
    state, (inputs, _) = student("deterministic", data, fitted(data, weights=file)), data.tensors("validation")
    meant = outputs_of(net("ResNet", (1, 8, 8), classes=3), resnet_weights(), inputs).softmax(-1)
    np.testing.assert_allclose(posterior_of(state).predict(inputs, rng=Seed(0)).mean, meant, atol=1e-6)


def test_a_mean_in_the_targets_units_gets_the_variance_of_its_training_errors() -> None:
    data = make_table()
    state = student("deterministic", data, fitted(data))
    module = net("perceptron", (4,), width=16)
    weights = torch.load("mlp.pt")
    means, fits = (outputs_of(module, weights, data.tensors(part)[0]) for part in ("validation", "train"))
    meant = scipy.stats.norm(means.numpy(), np.sqrt(np.mean((fits.numpy() - data.train.targets) ** 2)))
    predictive = Predictor(posterior_of(state), data.transform).predict(data.validation.inputs, rng=Seed(0))
    np.testing.assert_allclose(predictive.mean, meant.mean(), rtol=1e-5)
    log_prob = predictive.log_prob(torch.tensor(data.validation.targets))
    np.testing.assert_allclose(log_prob, meant.logpdf(data.validation.targets)[:, 0], rtol=1e-4, atol=1e-4)
    wrong = student("deterministic", data, fitted(data, targets="transformed"))
    assert nll(wrong, data) > nll(state, data) + 1, "the control: units matter"


def test_a_head_of_means_and_log_variances_is_used_unchanged() -> None:
    data, weights = make_table(), torch.load("mlp.pt")
    weights["3.weight"] = torch.cat([weights["3.weight"], 0.01 * torch.ones(1, 16)])
    weights["3.bias"] = torch.cat([weights["3.bias"], torch.tensor([1.5])])
    save_file(weights, "two.safetensors")
    state = student("deterministic", data, fitted(data, weights="two.safetensors"))
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    mean, log_variance = outputs_of(body, weights, data.tensors("validation")[0]).chunk(2, -1)
    meant = scipy.stats.norm(mean.numpy(), (log_variance / 2).exp().numpy()).logpdf(data.validation.targets)
    predictive = Predictor(posterior_of(state), data.transform).predict(data.validation.inputs, rng=Seed(0))
    log_prob = predictive.log_prob(torch.tensor(data.validation.targets))
    np.testing.assert_allclose(log_prob, meant[:, 0], rtol=1e-4, atol=1e-4)


KEPT: dict[str, Any] = {  # the same weights in the forms that people save
    "Lightning": lambda w: {"state_dict": prefixed("model", w), "epoch": 3},
    "a trainer's, in parallel": lambda w: {"model": prefixed("module", w), "optimizer": {"state": {}}},
    "model_state_dict": lambda w: {"model_state_dict": w, "loss": 0.1},
    "two prefixes": lambda w: prefixed("learner.net", w),
    "AveragedModel": lambda w: {"n_averaged": torch.tensor(3), **prefixed("module", w)},
    "PyTorch before 0.4.1": lambda w: {k: v for k, v in w.items() if "num_batches_tracked" not in k},
}


def prefixed(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in weights.items()}


@pytest.mark.parametrize("form", KEPT)
def test_the_same_weights_are_read_from_every_common_form(form: str) -> None:
    torch.save(KEPT[form](resnet_weights()), "kept.pt")
    read_back, plain = (fitted(make_tiny_images(), weights=name) for name in ("kept.pt", "resnet.pt"))
    for name, value in read_back.tensors.items():
        assert torch.equal(value, plain.tensors[name]) or "num_batches_tracked" in name


def test_safetensors_are_recognised_by_content_whatever_the_file_name() -> None:
    save_file(resnet_weights(), "pytorch_model.bin")
    assert fitted(make_tiny_images(), weights="pytorch_model.bin").config["epochs"] == 0


EXTRA = {"extra.a.weight": torch.ones(1), "extra.b": torch.ones(1)}
WIDE = {"fc.weight": torch.ones(10, 8), "fc.bias": torch.ones(10)}
EXACTLY = "weights must be exactly the weights of this network.*"
DENSE = "must be a dense tensor of real numbers, got "
# what a file holds: bytes, an object that torch saves, or a function of the network's weights that returns one
UNREADABLE: dict[str, tuple[Any, str]] = {
    "text": (TEXT.encode(), "bad.pt: must be safetensors or a state_dict"),
    "a function": ({"f": print}, "bad.pt: must be safetensors or a state_dict"),
    "numbers": ({"a": 1}, r"bad.pt: must be a state_dict \(name -> tensor\)"),
    "another network": (lambda w: torch.load("mlp.pt"), EXACTLY + "lacks layer1.conv1.weight"),
    "more": (lambda w: {**w, **EXTRA, **WIDE}, EXACTLY + "has fc.weight, fc.bias, extra.a.weight and 1 more"),
    "a wide head": (lambda w: {**w, **WIDE}, r"this network: head.weight must have the shape \[3, 8\]"),
    "an empty file": (b"", "it is empty"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    "a web page": (b"<!DOCTYPE html>", "is a web page"),
    "a whole module": (nn.Linear(1, 1), r"holds Python objects, .*torch.save\(model.state_dict\(\)"),
    "a truncated file": (lambda w: Path("resnet.pt").read_bytes()[:900], "or not whole"),
    "two models": (lambda w: {"model": w, "ema": w}, "got model, ema; save one of them"),
    "sparse": (lambda w: changed(w, torch.Tensor.to_sparse), f"fc.weight {DENSE}torch.sparse_coo"),
    "without values": (lambda w: {k: v.to("meta") for k, v in w.items()}, DENSE + ".*meta"),
    "whole numbers": (lambda w: changed(w, torch.Tensor.char), "real numbers: head.weight is quantised without its"),
}


def changed(weights: dict[str, Tensor], change: Any) -> dict[str, Tensor]:
    return {**weights, "fc.weight": change(weights["fc.weight"])}


@pytest.mark.parametrize("what", UNREADABLE)
def test_the_error_of_an_unreadable_file_names_the_cause(what: str) -> None:
    content, message = UNREADABLE[what]
    if callable(content) and not isinstance(content, nn.Module):
        content = content(resnet_weights())
    Path("bad.pt").write_bytes(content) if isinstance(content, bytes) else torch.save(content, "bad.pt")
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        fitted(make_tiny_images(), weights="bad.pt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": "none.pt"}, r"none.pt: is missing"),
        ({"sha256": "0" * 64}, r"sha256 must be the hash of resnet.pt"),
        ({"network": RESNET | {"options": {"classes": 3, "width": 6}}}, r"layer1.conv1.weight must have the shape \[6"),
    ],
)
def test_no_file_and_weights_of_another_hash_or_width_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        fitted(make_tiny_images(), **change)


def warnings_of(state: State, data: FitData, network: dict[str, Any] = MLP, weights: str = "mlp.pt") -> list[str]:
    config: Any = read(METHODS["pretrained"].config, {"network": network, "weights": weights}, "methods.pretrained")
    return METHODS["pretrained"].stages["trajectory"].summarise([[state]], [data], config).warnings


def test_weights_worse_than_a_constant_predictor_give_a_warning() -> None:
    """Their classes are in another order, or targets and inputs have other units."""
    images, table = make_tiny_images(), make_table()
    torch.save({k: v.roll(1, 0) if k.startswith("fc.") else v for k, v in resnet_weights().items()}, "turned.pt")
    assert "doubt" not in fitted(images).config and "doubt" not in fitted(table).config
    assert "are the classes in the same order?" in fitted(images, weights="turned.pt").config["doubt"]
    line = warnings_of(fitted(table, targets="transformed"), table)[-1]
    assert "times worse than predicting the mean; are the targets in the same units? Check the key targets" in line


def test_code_in_a_file_of_weights_is_not_run(tmp_path: Path) -> None:
    class Touch:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"fc.weight": Touch()}, tmp_path / "bad.pt")
    with pytest.raises(DataError, match="must be safetensors or a state_dict"):
        fitted(make_tiny_images(), weights=str(tmp_path / "bad.pt"))
    assert not (tmp_path / "ran").exists()


def test_weights_with_this_packages_names_and_a_hash_are_read() -> None:
    """A network of this package, saved by its ``state_dict`` without the head's bias, which is then zero."""
    data = make_tiny_images()
    network = {"name": "convnet", "width": 4, "blocks": 2}
    first = fit("sgd", "trajectory", data, rng=Seed(0).fold("t"), network=network)
    last = {name: value[-1].clone() for name, value in first.tensors.items()}
    last["head.bias"] = torch.zeros_like(last["head.bias"])
    save_file({name: value for name, value in last.items() if name != "head.bias"}, "ours.safetensors")
    digest = hashlib.sha256(Path("ours.safetensors").read_bytes()).hexdigest()
    state = fitted(data, network=network, weights="ours.safetensors", sha256=digest)
    assert all(torch.equal(state.tensors[name][0], value) for name, value in last.items())


SPEC = {"input_shape": [1, 8, 8], "outputs": 3, "likelihood": "categorical"}


@pytest.mark.parametrize(
    ("how", "names"),
    [
        *(("parallel", "the user's"), ("compiled", "this package's")),
        *(("parallel and compiled", "this package's"), ("compiled and parallel", "the user's")),
    ],
)
def test_prefixes_of_wrapped_modules_are_removed_from_the_names_of_weights(how: str, names: str) -> None:
    data, network = make_tiny_images(), RESNET
    if names == "this package's":
        network = {"name": "convnet", "width": 4, "blocks": 2}
        module: nn.Module = read(NetworkSpec, {**SPEC, "network": network}, "spec").build(Seed(3))
    else:
        module = net("ResNet", (1, 8, 8), classes=3)
        module.load_state_dict(resnet_weights())
    save_file(module.state_dict(), "plain.safetensors")
    wrap: dict[str, Any] = {"parallel": nn.DataParallel, "compiled": torch.compile}
    wrapped: Any = module
    for part in how.split(" and "):
        wrapped = wrap[part](wrapped)
    assert not set(wrapped.state_dict()) & set(module.state_dict())
    torch.save(wrapped.state_dict(), "wrapped.pt")
    read_back, plain = (fitted(data, network=network, weights=name) for name in ("wrapped.pt", "plain.safetensors"))
    assert read_back.tensors.keys() == plain.tensors.keys()
    assert all(torch.equal(value, plain.tensors[name]) for name, value in read_back.tensors.items())
    (line,) = [line for line in warnings_of(read_back, data, network, "wrapped.pt") if "pretrained: removed" in line]
    named = "module. and _orig_mod." if "and" in how else {"parallel": "module.", "compiled": "_orig_mod."}[how]
    assert line == f"pretrained: removed {named} from the names of the weights in wrapped.pt"
    assert len(warnings_of(plain, data, network, "wrapped.pt")) == 1


def test_a_networks_own_part_named_module_keeps_its_name() -> None:
    data, network = make_tiny_images(), {"name": "python", "path": "nets.py", "object": "Holder"}
    module = net("Holder", (1, 8, 8))
    save_file(module.state_dict(), "holder.safetensors")
    state = fitted(data, network=network, weights="holder.safetensors")
    assert torch.equal(state.tensors["trunk.module.1.weight"][0], module.module[1].weight)
    assert "taken_off" not in state.config

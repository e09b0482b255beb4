"""Bad input: one line with the rule and the value, of a kind that is a ``ValueError``."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from bdl_pipe import METHODS, ModulePosterior, UserError, bayesianise

X, Y = torch.ones(6, 4).cumsum(0), torch.tensor([0, 1, 2, 0, 1, 2])


def net(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


class Odd(nn.Module):
    """A model that returns a function of the outputs of its last layer."""

    def __init__(self, of: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.body, self.of = net(), of

    def forward(self, x: Tensor) -> Any:
        return self.of(self.body(x))


class Tied(nn.Module):
    """A model with two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.fc = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.two(self.one(x)))


def dictionaries(**other: Tensor) -> list[dict[str, Tensor]]:
    return [{"x": X, "labels": Y}, {"x": X, "labels": Y, **other}]


class Attends(nn.Module):
    """A model that attends over the rows of a batch, since its attention expects the sequence first."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.TransformerEncoderLayer(4, 2, 8), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x[:, None].expand(-1, 2, -1)).mean(1))


def positive() -> nn.Sequential:
    """A network whose outputs for all rows are positive, and which ends in a ReLU."""
    made = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.ReLU())
    nn.init.constant_(made[2].bias, 50.0)
    return made


def quietly(make: Callable[[], Any]) -> Any:
    """Return an object whose making warns that a function of torch is deprecated or a prototype."""
    with warnings.catch_warnings(action="ignore"):
        return make()


def zero_head() -> nn.Sequential:
    made = nn.Sequential(net(), nn.Tanh())
    for weight in made[0][2].parameters():
        nn.init.zeros_(weight)
    return made


def norm(**options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, **options), nn.Linear(8, 3))


def nan() -> nn.Sequential:
    made = net()
    nn.init.constant_(made[0].bias, float("nan"))
    return made


def hooked(change: Callable[[nn.Module], Any]) -> nn.Sequential:
    """A network after a training step whose last layer's weight is computed from others by a hook."""
    made = net()
    change(made[2])
    made(X).sum().backward()
    return made.eval()


MODELS: dict[str, tuple[nn.Module, str]] = {
    "no model": (3, "model must be a torch.nn.Module, got 3"),
    "no linear layer": (
        nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten()),
        r"model must have a linear layer \(nn.Linear\) as its last layer, got 'none'",
    ),
    "a head of zeros before a tanh": (zero_head(), "head must be the last layer of the model"),
    "attention over the rows": (
        Attends(),
        "model must give a row the same outputs alone as among others .* set batch_first=True in attention",
    ),
    "batch norm without running statistics": (
        norm(track_running_stats=False),
        "model must be one that takes one row alone: ValueError: Expected more than 1 value",
    ),
    "weights of NaN": (nan(), "model must give finite outputs, got nan"),
    "weights without values": (net().to("meta"), "model must have values in its weights .*0.weight"),
    "a lazy layer": (
        nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 3)),
        r"model must have shapes of its weights \(call it once on a batch first\), got '0.weight'",
    ),
    "a lazy norm": (nn.Sequential(nn.LazyBatchNorm1d(affine=False), nn.Linear(4, 3)), "call it once on a batch first"),
    "a norm of the spectrum by hooks": (
        hooked(nn.utils.spectral_norm),
        r"can be copied \(first call it once under torch.no_grad\(\), if it keeps tensors of a training step",
    ),
    "pruned and trained": (
        hooked(lambda layer: prune.l1_unstructured(layer, "weight", 0.5)),
        "can be copied .* spectral_norm and prune do",
    ),
    "TorchScript": (
        quietly(lambda: torch.jit.trace(net(), X)),
        "model must be the module as it was written in Python, got TorchScript; load its weights",
    ),
    "softmax after the head": (
        nn.Sequential(net(), nn.Softmax(-1)),
        r"head must be the last layer of the model and linear: .*, got 0.2 \(2 rows give \[2, 3\]\)",
    ),
    "tied weights": (
        Tied(),
        "model must have one name for each weight, except with kfac_laplace .* got 'one.weight and two.weight, which",
    ),
    "a tuple as an answer": (Odd(lambda y: (y, y)), "model must give a tensor, or logits .* got tuple"),
    "outputs of tokens": (
        Odd(lambda y: y[:, None].expand(-1, 2, -1)),
        r"model must give outputs \[row, output\] of 2 rows, got \[2, 2, 3\]",
    ),
    "random outputs": (Odd(lambda y: y + torch.rand(1)), "model must give equal rows the same outputs"),
}
LOADERS: dict[str, tuple[Any, str]] = {
    "labels as real numbers": (
        [(X, Y.float())],
        r"targets must not be labels as real numbers, got 0.0, 1.0, 2.0: .* for classes pass y.long\(\)",
    ),
    "a column of real numbers a class": (
        [(X, torch.eye(3)[Y])],
        r"targets must not be a column of 0.0 and 1.0 a class: .* for classes pass y.argmax\(1\)",
    ),
    "a column of whole numbers a class": (
        [(X, torch.eye(3)[Y].long())],
        r"labels must be \[row\], got the shape \[6, 3\]; pass y.argmax\(1\)",
    ),
    "several labels of a row": (
        [(X, (torch.eye(3)[Y] + torch.eye(3)[0]).clamp(max=1))],
        r"targets must not be several labels of a row.*task='regression'.*fit a posterior for each label, to y\[:, k\]",
    ),
    "no label of a row": ([(X, torch.eye(3)[Y] * (Y[:, None] > 0))], "must not be several labels of a row"),
    "several whole labels of a row": (
        [(X, (torch.eye(3)[Y] + torch.eye(3)[0]).clamp(max=1).long())],
        r"labels must be \[row\], got the shape \[6, 3\]; for several labels of a row fit a posterior for each",
    ),
    "probabilities of classes": (
        [(X, 0.8 * torch.eye(3)[Y] + 0.2 / 3)],
        r"targets must not be probabilities of classes.*task='regression'.*pass a label of each row",
    ),
    "one column of labels": ([(X, Y[:, None])], r"got the shape \[6, 1\]; pass y\[:, 0\]"),
    "sparse inputs": ([(X.to_sparse(), Y)], r"inputs must be a dense tensor, got a sparse one; pass x.to_dense\(\)"),
    "quantised inputs": (
        [(quietly(lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)), Y)],
        "inputs must be a dense tensor, got a quantised one",
    ),
    "nested inputs": (
        [(quietly(lambda: torch.nested.nested_tensor(list(X))), Y)],
        "got a nested one; pass .*to_padded",
    ),
    "arrays of NumPy": ([(X.numpy(), Y.numpy())], r"got ndarray; pass torch.as_tensor\(x\)"),
    "inputs of another width": ([(X[:, :3], Y)], r"model must be one that takes rows of inputs \[3\]: Runtime"),
    "no loader": (None, "deterministic needs train_loader: batches"),
    "a number for a loader": (5, r"train_loader must be a loader of batches \(inputs, targets\), got 5"),
    "a batch for a loader": (X, r"train_loader must be a loader of batches \(inputs, targets\), got tensor"),
    "an empty loader": ([], "train_loader must have rows, got none"),
    "three in a tuple": ([(X, Y, Y)], "train_loader, batch 0: must be .* got a tuple of 3"),
    "a tensor alone": ([X], "train_loader, batch 0: must be .* got a Tensor"),
    "no labels": ([{"x": X}], "train_loader, batch 0: a dictionary must have the key labels, got x"),
    "a text among inputs": ([{"x": "a", "labels": Y}], "batch 0: x must be a tensor, got 'a'"),
    "other keys": (dictionaries(z=X), "train_loader, batch 1: inputs must be x, got x, z"),
    "other lengths": (
        [(X, Y), (X[:, :3], Y)],
        r"train_loader, batch 1: inputs must have the shape \[4\] in every row \(pad to one length\), got \[3\]",
    ),
    "other types": ([(X, Y), (X.long(), Y)], "batch 1: inputs must be of the type float, got int64"),
    "large numbers": ([(2**24 * X.long(), Y)], r"inputs must be below 2\*\*24, got 100663296"),
    "NaN inputs": ([(X.log() * float("nan"), Y)], "inputs must be finite, got nan"),
    "too few labels": ([(X, Y[:5])], r"targets must be as many as the inputs \(6\), got 5"),
    "labels as a list": ([(X, [0, 1])], r"targets must be a tensor .* got \[0, 1\]"),
    "labels of two columns": ([(X, Y[:, None])], r"labels must be \[row\], got the shape \[6, 1\]"),
    "labels outside": ([(X, Y + 1)], "labels must be 0 … 2, for 3 outputs, got 3 in row 2"),
    "ignored labels": ([(X, Y - 100)], "labels must be 0 … 2, for 3 outputs, got -100 in row 0"),
    "targets and outputs": ([(X, X[:, :2])], "outputs must be 2 means, or 2 means and 2 log-var.* got 3"),
}
CASES: dict[str, tuple[nn.Module, Any, Mapping[str, Any], str]] = {
    "a ReLU after the head, and positive outputs": (
        positive(),
        [(X, X[:, :1])],
        {},
        "head must be the last layer of the model and linear: .* such as a softmax or a ReLU, got 2",
    ),
    "batch norm and batches of one row": (
        norm(),
        [(x[None], y[None]) for x, y in zip(X, Y, strict=True)],
        {"epochs": 1},
        "train_loader must give batches of two rows or more, as batch norm needs for training, got 1",
    ),
    "labels as real numbers for one logit": (
        net(1),
        [(X, (Y > 0).float())],
        {},
        "pass task='regression', for classes pass y.long.. with a model of two outputs",
    ),
    "complex targets": (net(1), [(X, X[:, 0] + 0j)], {}, "targets must be real numbers, got torch.complex64"),
    "sparse targets": (net(1), [(X, X[:, :1].to_sparse())], {}, "targets must be a dense tensor, got a sparse one"),
    "a named head is none": (
        net(),
        [(X, Y)],
        {"head": "fc"},
        r"head must be a linear layer .* got 'fc \(it has 0, 2\)'",
    ),
    "a named head is not last": (
        net(8),
        [(X, Y)],
        {"head": "0"},
        r"head must be the last layer of the model.* got 0 .*; with another layer in its place .* RuntimeError: mat1",
    ),
    "one output": (
        net(1),
        [(X, Y % 2)],
        {},
        "model must have an output for each class, two or more .*pass task='regression'.*got 1",
    ),
    "NaN targets": (
        net(1),
        [(X, torch.tensor([1.0, 2, 3, float("nan"), 5, 6]))],
        {},
        r"train_loader: targets must be finite, got nan in row 3",
    ),
    "constant targets": (net(1), [(X, torch.ones(6))], {}, "train_loader: the target is constant"),
    "real labels": (net(), [(X, Y.double())], {"task": "classification"}, "labels must be whole numbers .*float64"),
    "unknown method": (
        net(),
        [(X, Y)],
        {"method": "swagg"},
        r"method must be one of .* got 'swagg' \(did you mean swag",
    ),
    "a Gaussian process": (
        net(),
        [(X, Y)],
        {"method": "gp"},
        "method must be able to start from a model .* got gp: it is made",
    ),
    "an ensemble": (net(), [(X, Y)], {"method": "ensemble"}, "got ensemble: it is made from several trajectories"),
    "a coreset": (net(), [(X, Y)], {"method": "vbpc"}, "got vbpc: it is made from a coreset"),
    "ciber_second": (
        net(1),
        [(X, X[:, 0])],
        {"method": "ciber_second", "epochs": 1},
        "layers of this library's own mlp",
    ),
    "a trajectory": (net(), [(X, Y)], {"method": "sgd", "epochs": 1}, "got sgd: it makes no posterior"),
    "another task": (
        net(),
        [(X, Y)],
        {"method": "vbll", "epochs": 1},
        "method must support classification .* got vbll",
    ),
    "swag without epochs": (net(), [(X, Y)], {"method": "swag"}, "swag needs epochs: give the number of epochs of SGD"),
    "vbll without epochs": (
        net(),
        [(X, Y)],
        {"method": "d_vbll"},
        "d_vbll needs epochs: give the number of epochs of its training",
    ),
    "chains without epochs": (
        net(),
        [(X, Y)],
        {"method": "sgmcmc"},
        "sgmcmc needs epochs: give the number of epochs of each chain",
    ),
    "a student alone": (net(), [(X, Y)], {"method": "dark_knowledge", "epochs": 1}, "dark_knowledge needs teacher"),
    "epochs of a half": (net(), [(X, Y)], {"epochs": 0.5}, "epochs must be a whole number > 0, got 0.5"),
    "a rate below 0": (net(), [(X, Y)], {"lr": -1.0}, "lr must be > 0, got -1.0"),
    "no chains": (net(), [(X, Y)], {"chains": 0}, "chains must be a whole number > 0, got 0"),
    "an unknown key": (
        net(),
        [(X, Y)],
        {"method": "swag", "epochs": 1, "config": {"ranks": 3}},
        r"config.ranks is not a known key \(did you mean rank\?\)",
    ),
    "a seed that is none": (net(), [(X, Y)], {"random_state": "a"}, "random_state must be a whole number, got 'a'"),
}
CASES |= {name: (model, [(X, Y)], {}, rule) for name, (model, rule) in MODELS.items()}
CASES |= {name: (net(), loader, {}, rule) for name, (loader, rule) in LOADERS.items()}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_in_one_line_with_the_rule_and_the_value(case: str) -> None:
    model, loader, options, message = CASES[case]
    with pytest.raises(UserError, match=message) as caught:
        inspect.unwrap(bayesianise)(model, **{"method": "deterministic", "train_loader": loader, **options})
    assert isinstance(caught.value, ValueError) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": X}, "predict: inputs must be one tensor, got x"),
        (X[:, :2], r"predict: inputs must have the shape \[4\] in every row"),
        (X.long(), "predict: inputs must be of the type float, got int64"),
        ([1.0], "predict: inputs must be a tensor or a dictionary of tensors, got list"),
    ],
)
def test_bad_inputs_of_a_prediction_are_refused_with_the_rule_and_the_value(inputs: Any, message: str) -> None:
    posterior = bayesianise(net(), "deterministic", [(X, Y)])
    with pytest.raises(UserError, match=message):
        inspect.unwrap(ModulePosterior.predict)(posterior, inputs)


def test_a_teacher_of_other_inputs_or_for_another_method_is_refused() -> None:
    teacher = bayesianise(net(), "deterministic", [(X, Y)])
    with pytest.raises(UserError, match="teacher is for dark_knowledge only; leave it out for swa"):
        bayesianise(net(), "swa", [(X, Y)], epochs=1, teacher=teacher)
    with pytest.raises(UserError, match="inputs must be one tensor, got x"):
        bayesianise(net(), "dark_knowledge", [{"x": X, "labels": Y}], epochs=1, teacher=teacher)


@pytest.mark.parametrize("change", [nn.utils.spectral_norm, lambda layer: prune.l1_unstructured(layer, "weight", 0.5)])
def test_a_hooked_layer_is_copied_after_the_cure(change: Callable[[nn.Module], Any]) -> None:
    model = hooked(change)
    with torch.no_grad():
        right = model(X).argmax(1)
    assert torch.equal(bayesianise(model, "deterministic", [(X, Y)]).predict(X).mean.argmax(1), right)


class Steps(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.round()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        return slopes[0]


class Counts(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


class Changes(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


class Words(nn.Module):
    """Scales each vector of an embedding to a norm of at most 1, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4, max_norm=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x[:, :2].abs().long().clamp(max=8)).mean(1)


UNLINEAR: dict[str, nn.Module] = {
    "a function of its own": Changes(Steps.apply),
    "NumPy": Changes(lambda x: torch.from_numpy(x.detach().numpy())),
    "a buffer changed in place": Counts(),
    "an embedding of a largest norm": Words(),
}


@pytest.mark.parametrize("name", UNLINEAR)
def test_a_model_that_cannot_be_linearised_is_refused_before_its_fit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laplace over all layers linearises it at each prediction; over the last layer it need not."""
    model = nn.Sequential(nn.Linear(4, 4), UNLINEAR[name], nn.Linear(4, 3))
    kfac = METHODS["kfac_laplace"]
    assert bayesianise(model, "kfac_laplace", [(X, Y)]).predict(X).mean.isfinite().all()
    monkeypatch.setattr(type(kfac.stages["student"]), "fit_one", lambda *_, **__: pytest.fail("the fit has begun"))
    with pytest.raises(UserError, match=r"model must be one that torch.func.jvp can linearise, .*\{'layers': 'last'\}"):
        bayesianise(model, "kfac_laplace", [(X, Y)], config={"layers": "all"})


def test_a_weight_without_dimensions_is_a_weight_like_others() -> None:
    """For example the scale of logits of a cosine head, as in CLIP."""
    found = []
    for shape in ((), (1,)):
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Scaled(shape), nn.Linear(8, 3, bias=False))
        model.load_state_dict({**net_of_eight().state_dict(), "2.scale": torch.full(shape, 3.0)})
        found += [bayesianise(model, "kfac_laplace", [(X, Y)]), bayesianise(model, "swag", [(X, Y)], epochs=2)]
    for plain, other in zip(found[2:], found[:2], strict=True):
        assert torch.equal(plain.predict(X).mean, other.predict(X).mean)


class Scaled(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def net_of_eight() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Identity(), nn.Linear(8, 3, bias=False))


def test_a_compiled_module_has_the_predictions_of_the_module() -> None:
    plain, posteriors = net(), []
    for model in (plain, torch.compile(plain, backend="eager")):
        posteriors.append(bayesianise(model, "swag", [(X, Y)], epochs=2))
    assert torch.equal(posteriors[0].predict(X).mean, posteriors[1].predict(X).mean)


def test_a_note_states_that_a_last_layer_without_gradient_is_fitted() -> None:
    model = net()
    for weight in model.parameters():
        weight.requires_grad_(False)
    note = "2 is fitted although its weights need no gradient: every posterior is over the last layer"
    assert note in bayesianise(model, "kfac_laplace", [(X, Y)]).notes


def test_a_model_that_is_worse_than_a_constant_has_a_note() -> None:
    """For example, its classes are in another order, or its inputs have other units."""
    model = nn.Sequential(nn.Linear(4, 3))
    nn.init.zeros_(model[0].weight)
    model[0].bias.data = torch.tensor([0.0, 1.0, 0.0])
    labels = torch.tensor([0, 0, 0, 0, 1, 2])
    (note,) = bayesianise(model, "kfac_laplace", [(X, labels)]).notes
    assert note.startswith(
        "the weights are right for 17% of the training rows, the most frequent class is right for 67%"
    )
    assert "check the order of the classes and the units of the inputs" in note


def test_real_numbers_that_look_like_labels_are_accepted_with_task_regression() -> None:
    posterior = bayesianise(net(2), "kfac_laplace", [(X, (Y > 0).float())], task="regression")
    assert posterior.about.task == "regression"

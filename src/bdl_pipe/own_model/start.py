"""How a method starts at a user's model: what it needs besides it, and its inputs.

A registered method can start at a user's model if it says how (``Method.from_model``). So can the method of a plugin
whose only input is one trajectory. Its inputs take the place of the pipeline's artifacts: the data of a loader, and a
trajectory of one snapshot.

Inputs do not change. Regression targets are standardised as in the pipeline, and the head is rescaled with them. Some
layers keep point weights when a method converts layers to random weights (:func:`points`).
"""

import copy
import re
from typing import Any, Final, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..artifacts import State
from ..config import nearest, read, to_mapping
from ..data.examples import Examples, Task
from ..data.fitdata import FitData
from ..data.normalise import target_constants
from ..data.size import Section
from ..data.transform import Transform
from ..errors import DataError, UserError, require
from ..inducing.config import INDEPENDENT, Kind
from ..method import Method, ModelFit, StageSpec
from ..networks.base import WEIGHTED
from ..networks.normalisation import BatchNorm
from ..posterior import NetworkSpec
from ..predictive import Gaussian
from ..registry import METHODS
from ..seeds import Seed
from ..training.snapshots import snapshot
from ..trajectory.curvature import layers_with_factors
from ..trajectory.linearised import LinearisedDraws
from ..trajectory.snapshots import begun
from .module import Registered, asked
from .rows import LoadedRows, require_targets
from .trunk import ModuleTrunk

_LINEARISED: Final = (
    "torch.func.jvp can linearise, for all layers: without NumPy, without changes of weights or buffers in place, and "
    "with setup_context in functions of its own; or pass config={'layers': 'last'}"
)
_ROWS: Final = 1000  # rows of one forward pass
_MOST_PRECISE: Final = 100.0  # the largest λ_n, since errors on training rows are too small
INDUCING: Final = get_args(Kind)
CHAINS: Final = "sgmcmc"
STUDENT: Final = "dark_knowledge"


def able() -> list[str]:
    """Return the names of the methods that say how they start at a user's model."""
    return [method.name for method in METHODS.values() if method.from_model is not None]


def method_of(name: str) -> Method:
    """Return a method that can start from a user's model.

    Raises:
        UserError: no method has this name, or the method cannot start from a model.
    """
    if name not in METHODS:
        raise UserError(f"method must be one of {', '.join(able())}, got {name!r}{nearest(name, METHODS)}")
    method = METHODS[name]
    student = method.stages.get("student")
    one_trajectory = student is not None and dict(student.needs) == {"trajectory": "one_to_one"}
    if method.from_model is None and not (one_trajectory and METHODS.module_of(name) is not None):
        needs = "it makes no posterior" if student is None else f"it is made from {_sources(student)}"
        made = f"{'BayesianClassifier' if 'classification' in method.tasks else 'BayesianRegressor'}({name!r})"
        cure = f"Available: {', '.join(able())}. For {name} use bdl_pipe.{made}"
        raise UserError(f"bayesianise cannot build {name} from one model: {needs}. {cure}")
    return method


def check_task(method: Method, task: Task) -> None:
    """Raise UserError if a method does not predict the task."""
    if task not in method.tasks:
        others = [other for other in able() if task in METHODS[other].tasks]
        raise UserError(f"method must support {task} ({', '.join(others)}), got {method.name}")


def check_needs(method: Method, epochs: object, teacher: object) -> None:
    """Raise UserError if a method lacks an argument that it needs."""
    name = method.name
    if name == STUDENT and teacher is None:
        raise UserError("dark_knowledge needs teacher: pass the posterior of an earlier call, for the model to imitate")
    if name != STUDENT and teacher is not None:
        raise UserError(f"teacher is for dark_knowledge only; leave it out for {name}")
    if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1):
        raise UserError(f"epochs must be a whole number > 0, got {epochs!r}")
    if epochs is None and method.from_model is not None and method.from_model.needs_epochs:
        of_sgd = "the number of epochs of SGD, which start from the model and give its snapshots"
        lengths = {
            CHAINS: "the number of epochs of each chain, which starts from the model",
            STUDENT: "the length of the student's training, in epochs",
        }
        usual = of_sgd if starts_with_sgd(method) else "the number of epochs of its training"
        raise UserError(f"{name} needs epochs: give {lengths.get(name, usual)}")


def starts_with_sgd(method: Method) -> bool:
    """Return whether epochs of SGD, which make a trajectory, come before the method's own fit."""
    return method.from_model is None or "trajectory" in method.stages["student"].required


def _sources(stage: StageSpec) -> str:
    if "trajectory" in stage.required and stage.needs["trajectory"] == "one_to_one":
        return "the layers of this library's own mlp"
    plural = {"trajectory": "several trajectories", "coreset": "a coreset"}
    named = [plural.get(kind, kind) for kind, rule in stage.needs.items() if rule == "all" or kind == "coreset"]
    return " and ".join(named) or "the data alone, with a network of its own"


def trajectory_section(fit: ModelFit) -> Section:
    """Return ``methods.sgd`` for more epochs at a constant rate, with snapshots in each."""
    assert fit.epochs is not None
    per_epoch = min(fit.steps_per_epoch, -(-fit.draws // fit.epochs))
    snapshots = min(fit.draws, fit.epochs * per_epoch)
    training = fit.training(1e-3, schedule="constant")
    kept = {"snapshots": snapshots, "snapshots_per_epoch": per_epoch}
    return {"network": fit.network, "augmentation": None, "early_stopping": None, **kept, **training}


def transform_of(rows: LoadedRows) -> Transform:
    """Return the transform that keeps inputs unchanged and standardises targets of regression.

    Raises:
        DataError: a target is constant.
    """
    if rows.task == "classification":
        return Transform.of_targets()
    shift, scale = target_constants(rows.examples.targets, "standardise", "train_loader")
    return Transform.of_targets(torch.from_numpy(shift), torch.from_numpy(scale))


def fit_data(rows: LoadedRows, outputs: int, transform: Transform, device: torch.device) -> FitData:
    """Return the data of a fit in which all rows are training rows.

    Raises:
        DataError: a label is not the index of an output, or the number of outputs does not fit the targets.
    """
    targets = rows.examples.targets
    if rows.task == "classification":
        rule = "must have an output for each class, two or more (for regression pass task='regression')"
        require(outputs > 1, "model", rule, outputs)
        require_targets(rows, "train_loader", outputs)
    elif outputs not in (targets.shape[1], 2 * targets.shape[1]):
        columns = targets.shape[1]
        rule = f"outputs must be {columns} means, or {columns} means and {columns} log-variances"
        raise DataError(f"model: {rule}, for targets of {columns} columns, got {outputs}")
    classes = tuple(map(str, range(outputs))) if rows.task == "classification" else ()
    nothing = Examples(rows.examples.inputs[:0], targets[:0])
    return FitData(rows.task, rows.examples, nothing, transform, classes, str(device))


def trajectory(model: Registered, data: FitData) -> State:
    """Return the model's weights as a trajectory of one snapshot.

    Raises:
        ConfigError: the model's predictions of the training rows are not finite.
    """
    classes = data.task == "classification"
    spec = NetworkSpec(model.config, data.input_shape, data.outputs, "categorical" if classes else "gaussian_head")
    return begun(spec.build(Seed(0)), spec, model.weights(), data, "own", "model")


def with_fixed_noise(first: State, model: Registered, data: FitData) -> State:
    """Return a trajectory without the log-variances that the model lacks; its noise is that of the model's errors.

    The noise of each target is the mean square of its errors on the training rows. A model that has log-variances, or
    that predicts classes, is returned unchanged.
    """
    columns = data.outputs
    if data.task == "classification" or model.head.out_features != columns:
        return first
    variances = first.tensors["head.bias"][-1, columns:].double().exp()
    noise = tuple(float(value) for value in variances)
    spec = NetworkSpec(model.config, data.input_shape, columns, "gaussian", noise)
    means = {name: first.tensors[name][:, :columns].contiguous() for name in ("head.weight", "head.bias")}
    return State({**first.tensors, **means}, {**first.config, "spec": to_mapping(spec)})


def require_linearisable(first: State, data: FitData) -> None:
    """Raise UserError if torch cannot linearise the model by the layers that ``kfac_laplace`` draws.

    The predictions linearise it; the error comes before the fit and not after it.
    """
    spec, weights = read(NetworkSpec, first.config["spec"], "spec"), snapshot(first, -1)
    network, rows = spec.build(Seed(0)).eval(), torch.from_numpy(data.train.inputs[:2])
    network.load_state_dict(weights)
    drawn = layers_with_factors(network, rows)
    moved = {name: value + (name.rpartition(".")[0] in drawn) for name, value in weights.items()}
    draws = LinearisedDraws(spec, {name: torch.stack([value, moved[name]]) for name, value in weights.items()})
    asked(_LINEARISED, lambda: draws.predict(rows))


def chain_start(start: State, model: Registered, data: FitData) -> tuple[State, float | None]:
    """Return the start of chains, without dropout, and the precision of the targets' noise, None for classes.

    The noise of regression is one variance, the mean square of the model's errors on the training rows.

    Raises:
        UserError: the model has batch norm, or fits every training row exactly.
    """
    layers = model.trunk.module.named_modules()
    norms = [name for name, layer in layers if isinstance(layer, BatchNorm)]
    if norms:
        layers = f"{len(norms)} such layer{'s' if len(norms) > 1 else ''}, the first is {norms[0]}"
        raise UserError(f"sgmcmc does not support batch norm, and the model has {layers}: replace it by GroupNorm")
    classes = data.task == "classification"
    shape, outputs = data.input_shape, data.outputs
    weights, precision = snapshot(start, -1), None
    if not classes:
        error = squared_error(start, model, data)
        rule = "must not fit every training row exactly: the chains take their noise from its errors"
        require(error > 0, "model", rule, error)
        precision = min(1 / error, _MOST_PRECISE)
        weights |= {name: weights[name][:outputs] for name in ("head.weight", "head.bias")}
    config = model.without_dropout.config
    spec = NetworkSpec(config, shape, outputs, "categorical" if classes else "gaussian", 1 / (precision or 1.0))
    stored = {name: value[None].contiguous() for name, value in weights.items()}
    return State(stored, {**start.config, "spec": to_mapping(spec)}), precision


@torch.no_grad()
def squared_error(first: State, model: Registered, data: FitData) -> float:
    """Return the mean square error of the model's weights, on the standardised training targets."""
    spec, total = NetworkSpec(model.config, data.input_shape, data.outputs, "gaussian_head"), 0.0
    network = spec.build(Seed(0))
    network.load_state_dict(snapshot(first, -1))
    network.to(data.device).eval()
    for inputs, targets in data.rows("train", data.device).batches(_ROWS):
        predictive = spec.predictive(network(inputs)[None])
        assert isinstance(predictive, Gaussian)
        total += float((targets - predictive.mean).double().square().sum())
    return total / (len(data.train) * data.outputs)


@torch.no_grad()
def points(trunk: ModuleTrunk, kind: str, probe: Float[Tensor, "row 1 1 width"]) -> list[str]:
    """Name the layers with matrices that the method ``kind`` cannot make random; the model itself has the name "".

    These are layers of unsupported types and, for kinds that may draw outputs, layers with a weight or bias that the
    model reads, since a converted layer has no such attribute: a torch encoder layer reads the weight for its fast
    path, a patch embedding for its type.
    """
    layers = dict(trunk.module.named_modules())
    matrices = [n for n, layer in layers.items() if any(w.ndim > 1 for w in layer.parameters(recurse=False))]
    watched = dict[str, _Watched]()
    if kind in INDEPENDENT:  # in a pass of evaluation, the linear and convolutional layers record what the model reads
        copied = copy.deepcopy(trunk).eval()
        watched = {name: _Watched(m) for name, m in copied.module.named_modules() if name and type(m) in WEIGHTED}
        for name, layer in watched.items():
            copied.module.set_submodule(name, layer)
        copied(probe.cpu())
    seen = {name for name, layer in watched.items() if layer.looked_at}
    return [name for name in matrices if type(layers[name]) not in WEIGHTED or name in seen]


def pattern(name: str) -> str:
    """Return a pattern that matches a layer's name in the network, and no other name."""
    return re.sub(r"([*?[])", r"[\1]", ".".join(filter(None, ("trunk.module", name))))


@final
class _Watched(nn.Module):
    """A layer that records whether code outside of it reads its tensors."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.looked_at = layer, False

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs

    def __getattr__(self, name: str) -> Any:
        if name not in ("weight", "bias"):
            return super().__getattr__(name)
        self.looked_at = True
        return getattr(self.layer, name)

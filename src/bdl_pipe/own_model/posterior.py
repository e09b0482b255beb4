"""The posterior of a user's model: it takes the model's inputs, and predicts in the targets' own units.

State: the tensors of the method's posterior, the targets' constants and the recalibration; config ``inner`` (of the
method's posterior), the layout of the inputs, and the arguments of the fit. The model itself is not stored: another
process that reads a state must pass it (:meth:`ModulePosterior.load`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from .. import artifacts, recalibration
from ..artifacts import State, under
from ..config import LATER, read, to_mapping
from ..data.examples import Task
from ..data.transform import Transform
from ..errors import ArtifactError, UserError, short
from ..joint_predictive import DRAWS, Joint
from ..posterior import Posterior, Predictor, joint
from ..predictive import Predictive
from ..recalibration import Recalibration
from ..registry import posterior_of
from ..seeds import Seed, own_settings
from . import logged
from . import rows as loaders
from .module import register_again, trunk_of
from .trunk import Layout, ModelInputs, check, pad_token, plain, tied

_KIND: Final = "module"
_STEM: Final = "posterior"
_INNER: Final = "inner."
_TARGETS: Final = "targets."
_SCORES: Final = "recalibration.scores"
_PREDICTED: Final = 1000  # rows of a loader in one prediction


@dataclass(frozen=True)
class About:
    """Facts about a posterior.

    Attributes:
        method: the method's name.
        task: ``classification`` or ``regression``.
        digest: the model's digest.
        head: the name of the model's last layer.
        layout: the layout of the model's inputs.
        plain_order: whether the model's filters keep the plain memory order.
        config: the method's hyperparameters.
        notes: notes for the user, one line each.
        shapes: weight of the model -> its shape.
        sigmoid: the name of the sigmoid after the model's one output, or the empty text.
    """

    method: str
    task: Task
    digest: str
    head: str
    layout: Layout
    plain_order: bool
    config: dict[str, Any]
    notes: tuple[str, ...] = ()
    shapes: dict[str, Any] = field(default_factory=dict)
    sigmoid: str = field(default="", metadata=LATER)


@final
class ModulePosterior:
    """A posterior of a user's model.

    Attributes:
        about: the method, its hyperparameters, and notes.
        inner: the method's posterior, for packed rows and standardised targets.
        transform: the transform of the targets.
        recalibration: learnt from rows that model and fit have not seen. None if there were no such rows.
        device: the device that predicts.
    """

    key = "module"

    def __init__(
        self,
        inner: Posterior,
        transform: Transform,
        about: About,
        trunk: nn.Module,
        device: torch.device | str = "cpu",
        recalibrated: Recalibration | None = None,
        some_rows: Tensor | None = None,
    ) -> None:
        """Store the parts; ``trunk`` keeps the model registered in this process, ``some_rows`` are for exports."""
        self.inner, self.transform, self.about, self.trunk = inner, transform, about, trunk
        self.device, self.recalibration = torch.device(device), recalibrated
        self._units, self._some_rows = Predictor(inner, transform), some_rows

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.about.method}, {self.about.task}, on {self.device}>"

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the user, one line each."""
        return self.about.notes

    @own_settings()
    @torch.no_grad()
    def predict(self, inputs: ModelInputs, *, rng: Seed = Seed(0)) -> Predictive:
        """Return the predictive for the model's inputs, with targets in their own units.

        Raises:
            DataError: the inputs' names, shapes or types differ from the loader's.
        """
        return self.of_rows(self._rows(inputs), rng)

    def of_rows(self, rows: Tensor, rng: Seed) -> Predictive:
        """Return :meth:`predict` for packed rows on the posterior's device."""
        predictive = self._transformed(rows, rng)
        if self.recalibration is not None:
            predictive = self.recalibration.apply(predictive)
        return self._units.own_units(predictive)

    def predict_dist(self, inputs: ModelInputs, *, rng: Seed = Seed(0)) -> Predictive:
        """Call :meth:`predict`; this is its name in the estimators."""
        return self.predict(inputs, rng=rng)

    @own_settings()
    @torch.no_grad()
    def joint(
        self,
        inputs: ModelInputs,
        *,
        places: Int[Tensor, "group place"] | None = None,
        draws: int = DRAWS,
        rng: Seed = Seed(0),
    ) -> Joint:
        """Return the joint of each group of inputs, without recalibration, which applies to single rows.

        Args:
            inputs: the model's inputs, each tensor [group, row, ...].
            places, draws: as in :func:`bdl_pipe.joint`.

        Raises:
            DataError: as :meth:`predict`.
        """
        named = {"": inputs} if isinstance(inputs, Tensor) else dict(inputs)
        flat, shape = {n: values.flatten(0, 1) for n, values in named.items()}, next(iter(named.values())).shape[:2]
        grouped = self._rows(flat[""] if isinstance(inputs, Tensor) else flat).unflatten(0, shape)
        standardised = joint(self.inner, grouped, rng=rng.fold("predict"), draws=draws, places=places)
        return self._units.joint_in_own_units(standardised)

    @own_settings()
    def recalibrated(self, loader: object, *, rng: Seed = Seed(0)) -> "ModulePosterior":
        """Return the posterior with the temperature (classes) or widths (regression) that fit a loader's rows best.

        Neither the model nor the fit may have used these rows. An earlier recalibration is replaced. A temperature is
        of the mixture of draws: the predictive of classes then has one draw, so that its mutual information is 0.

        Raises:
            DataError: the loader yields inputs or targets in a different form from the fit's loader, or labels of no
                class.
        """
        where = "the loader of recalibrated"
        about, pad = self.about, pad_token(self.trunk)
        rows = loaders.read(loader, where, rng=rng, task=about.task, layout=about.layout, pad_token=pad)
        with torch.no_grad():
            one = torch.from_numpy(np.ascontiguousarray(rows.examples.inputs[:1]))
            outputs = self._transformed(one.to(self.device), rng).mean.shape[-1]  # classes, or target columns
        loaders.require_targets(rows, where, outputs)
        return self.recalibrated_on(rows, rng)

    @own_settings()
    def recalibrated_on(self, rows: loaders.LoadedRows, rng: Seed) -> "ModulePosterior":
        """Return :meth:`recalibrated` for rows that have been read."""
        learnt = recalibration.fit(self._batches(rows, rng), rows.examples, self.transform)
        parts = self.inner, self.transform, self.about, self.trunk, self.device
        return ModulePosterior(*parts, learnt, self._some_rows)

    @own_settings()
    def export(self, path: Path | str, inputs: ModelInputs | None = None) -> float:
        """Write the posterior as a program that needs neither this package nor the model's code.

        The program takes the model's inputs, with any number of rows, and returns class probabilities [row, class], or
        means and variances [row, output] in the targets' own units. It includes the recalibration. It is compared with
        the posterior before it is written.

        Args:
            path: ``<name>.pt2``, for ``torch.export.load``, or ``<name>.onnx``, for onnxruntime.
            inputs: three rows or more, to compare. None: some rows of the fit, which a loaded posterior does not have.
                Sequences have the length of these rows.

        Returns:
            The largest difference from the posterior, relative to the largest output; at most 1e-5.

        Raises:
            UserError: the posterior draws when it predicts, or torch cannot trace it or the model; ONNX lacks an
                operation.
        """
        return logged.write(self, Path(path), self._example(inputs))

    @own_settings()
    def log_model(self, name: str = "model", inputs: ModelInputs | None = None, **options: Any) -> Any:
        """Log the program of :meth:`export` to MLflow as a pyfunc model, and return MLflow's description of it.

        The model needs torch, pandas and MLflow. It takes an array, or named arrays, and returns a row with the columns
        ``predicted`` and ``p_<class>``, or ``mean`` and ``sd``, for each row.

        Args:
            name: the model's name in the active run, or in a new one.
            inputs: see :meth:`export`.
            options: further arguments of ``mlflow.pyfunc.log_model``, such as ``registered_model_name``.

        Raises:
            UserError: MLflow is not installed, or see :meth:`export`.
        """
        return logged.log_model(self, name, self._example(inputs), options)

    def _example(self, inputs: ModelInputs | None) -> Tensor | dict[str, Tensor]:
        if inputs is None and self._some_rows is None:
            raise UserError("a loaded posterior needs inputs: three rows or more, to compare the program with it")
        rows = self._rows(inputs) if inputs is not None else self._some_rows
        assert rows is not None
        return self.about.layout.unpack(rows)

    def state(self) -> State:
        inner = self.inner.state()
        tensors = {f"{_INNER}{name}": value for name, value in inner.tensors.items()}
        targets = {"shift": self.transform.shift, "scale": self.transform.scale}
        tensors |= {f"{_TARGETS}{name}": value for name, value in targets.items() if value is not None}
        config: dict[str, object] = {
            "posterior": self.key,
            "inner": dict(inner.config),
            "about": to_mapping(self.about),
        }
        if self.recalibration is not None:
            tensors[_SCORES] = self.recalibration.scores
            config["recalibration"] = dict(self.recalibration.state().config)
        return State(tensors, config)

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "ModulePosterior":
        """Rebuild the posterior of a model that is registered in this process.

        Raises:
            UserError: no call of :func:`~.bayesianise.bayesianise` or :meth:`load` has registered the model here.
        """
        about = _about(state)
        trunk, transform = trunk_of(about.digest), Transform.of_targets(**under(_TARGETS, state.tensors))
        with loaders.own_randomness(Seed(0)):  # torch draws initial weights for each new layer
            inner = posterior_of(State(under(_INNER, state.tensors), state.config["inner"]), device)
        learnt = None
        if "recalibration" in state.config:
            stored = State({"scores": state.tensors[_SCORES]}, state.config["recalibration"])
            learnt = Recalibration.from_state(stored)
        return cls(inner, transform, about, trunk, device, learnt)

    def save(self, path: Path | str) -> None:
        """Write the posterior to the folder ``path``, without pickle and without the model."""
        with artifacts.publish(Path(path), _KIND, about={"method": self.about.method}) as folder:
            artifacts.write_state(folder / _STEM, self.state())

    @classmethod
    @own_settings()
    def load(cls, path: Path | str, model: nn.Module) -> "ModulePosterior":
        """Read a folder that :meth:`save` wrote, on the device of the model.

        Args:
            model: a model with the same code, settings, shapes and frozen weights; its other weights are not used.

        Raises:
            ArtifactError: the folder is not a complete posterior, or belongs to another model.
        """
        state = artifacts.load(Path(path), _KIND).state(_STEM)
        about, model = _about(state), plain(model)
        check(model, may_be_tied=True)
        facts: dict[str, Any] = {"plain_order": about.plain_order, "sigmoid": about.sigmoid}
        facts["classes"] = about.task == "classification"
        registered = [
            register_again(model, about.layout, about.head, frozen_trunk=whole, **facts)
            for whole in ((True,) if tied(model) else (False, True))
        ]
        if about.digest not in {each.config.digest for each in registered}:
            raise ArtifactError(
                f"{path}: this is not the model that the posterior was fitted to: {_difference(model, about.shapes)}"
            )
        return cls.from_state(state, device_of(model))

    def _rows(self, inputs: object) -> Tensor:
        return self.about.layout.pack(inputs, "predict").to(self.device)

    def _transformed(self, rows: Tensor, rng: Seed) -> Predictive:
        return self.inner.predict(rows, rng=rng.fold("predict"))

    @torch.no_grad()
    def _batches(self, loaded: loaders.LoadedRows, rng: Seed) -> Iterator[tuple[slice, Predictive]]:
        for start in range(0, len(loaded), _PREDICTED):
            rows = slice(start, start + _PREDICTED)
            inputs = torch.from_numpy(np.ascontiguousarray(loaded.examples.inputs[rows]))
            yield rows, self._transformed(inputs.to(self.device), rng)


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first weight."""
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


def shapes_of(model: nn.Module) -> dict[str, Any]:
    """Return the shape of each weight and buffer of a model."""
    return {name: list(value.shape) for name, value in model.state_dict().items()}


def _difference(model: nn.Module, expected: Mapping[str, Any]) -> str:
    """Return the first difference between a model's weights and ``expected``, or which differences may remain."""
    shapes = shapes_of(model)
    for name in dict.fromkeys([*expected, *shapes] if expected else []):
        if name not in shapes:
            return f"it has no {name}"
        if name not in expected:
            return f"it has {name}, and that model has not"
        if shapes[name] != expected[name]:
            return f"{name} has the shape {shapes[name]}, expected {expected[name]}"
    return "its settings, its code, or weights that the posterior does not store (a frozen trunk) differ"


def _about(state: State) -> About:
    about = state.config.get("about")
    if not isinstance(about, Mapping):
        raise ArtifactError(f"about must describe the posterior's module, got {short(about)}; save it again")
    return read(About, about, "about")

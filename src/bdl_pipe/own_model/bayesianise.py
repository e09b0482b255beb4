"""A posterior of a user's own model in one call.

    posterior = bdl_pipe.bayesianise(model, method="kfac_laplace", train_loader=loader)
    posterior.predict(inputs)

The model is copied and not changed. The copy without its head becomes a trunk of the library, and its weights become a
trajectory of one snapshot (as ``trajectory.pretrained`` makes from a file). The method's own fit starts from these.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import torch
from torch import nn

from ..artifacts import State
from ..config import merge, read, to_mapping
from ..data.examples import Task
from ..data.fitdata import FitData
from ..errors import UserError, require, short
from ..fitting import RATE_SHARE, Fits, SeedFit
from ..method import Inputs, Method, ModelFit, StageSpec
from ..networks.normalisation import BatchNorm
from ..progress import Report, Silent
from ..registry import METHODS, posterior_of
from ..seeds import Seed, own_settings
from . import start
from .lora import adapted
from .module import Registered, register
from .posterior import About, ModulePosterior, device_of, shapes_of
from .rows import check_labels, own_randomness, require_targets
from .rows import read as read_rows
from .start import CHAINS, INDUCING
from .trunk import check, pad_token, plain, tied

_ADAPTERS_TEMPERATURE: Final = 0.1  # of K-FAC over all adapters: at 1 drawn adapters predict badly (results/lora.md)
_PROBED: Final = 2  # rows in the call that checks the model
_COMPARED: Final = 16  # rows that compare an exported program with its posterior
_SHOWN: Final = 3
_FEWEST: Final = 50  # the fewest rows of which a share is held out
HELD: Final = "{} of the {} rows were held out for the widths of intervals; pass calibration_loader, or held_out=0"
TRAINED: Final = (
    "intervals may be too narrow: before the fit the model explains {:.0%} of the variance of its rows. If you trained "
    "it on them, the rows held out for the widths are not new to it; pass calibration_loader"
)
_TRAINED_FROM: Final = 0.5  # the share of the variance; a new head explains none
SEEN: Final = "intervals may be too narrow: the noise is that of rows which the model has seen; pass calibration_loader"


@own_settings()
def bayesianise(
    model: nn.Module,
    method: str = "kfac_laplace",
    train_loader: object = None,
    *,
    task: Task | None = None,
    head: str | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    config: Mapping[str, object] | None = None,
    trajectory: Mapping[str, object] | None = None,
    teacher: ModulePosterior | None = None,
    chains: int = 2,
    random_state: int = 0,
    report: Report | None = None,
    calibration_loader: object = None,
    held_out: float = 0.2,
) -> ModulePosterior:
    """Return a posterior of ``model``, fitted by a registered method.

    Args:
        model: takes a tensor, or a dictionary of tensors as keyword arguments, and returns outputs [row, output], as a
            tensor or as ``logits``; its last layer is linear. For classes the outputs are logits; one logit, with or
            without ``nn.Sigmoid``, is of two classes. For regression they are means in the targets' own units, or means
            and log-variances. Weights without gradient are not changed, but for the last layer's; with adapters
            (:func:`~.lora.lora`) that is not changed, either.
        method: a name of ``bdl_pipe.METHODS``.
        train_loader: batches (inputs, targets), or dictionaries with ``labels``. It is read once.
        task: the task of integer targets. None means classification. Other targets mean regression.
        head: the dotted name of the last layer. None searches for it.
        epochs: passes over the rows, starting from the model. Methods that train need it; before ``deterministic`` and
            ``kfac_laplace`` it adds epochs of SGD, and None adds no epoch.
        lr: the learning rate, or the rate of a chain's steps. None means 1e-3, for inducing weights 1e-2, for chains
            3e-3.
        config: hyperparameters of the method, as under ``methods.<method>`` in params.yaml; missing ones are derived
            from the other arguments. ``kfac_laplace`` has all layers, at a temperature of 0.1, if there are adapters.
        trajectory: hyperparameters of the epochs of SGD, as under ``methods.sgd``.
        teacher: the posterior that ``dark_knowledge`` imitates; ``model`` is the student.
        chains: the number of chains of ``sgmcmc``.
        random_state: the root seed of all random numbers; the global generators do not change.
        report: receives the progress of each stage of the fit; checkpoints are not kept.
        calibration_loader: rows that neither the model nor the fit has seen, for :meth:`ModulePosterior.recalibrated`.
            None: for regression with ``epochs`` some rows are held out; otherwise the predictive is as the method has
            it, and a note says for regression what this means.
        held_out: the share of the rows that is held out from a regression with ``epochs``, drawn at random, if there
            are 50 rows or more. They are new to the fit, but not to a model that you have trained on them. 0: none.

    Raises:
        UserError: the model, the loader or a hyperparameter breaks a rule; the message has the rule, in one line.
        Diverged: a fit diverged even at the smallest rates.
    """
    chosen = start.method_of(method)
    start.check_needs(chosen, epochs, teacher)
    if method == "kfac_laplace" and isinstance(model, nn.Module) and adapted(model):
        config = {"layers": "all", **(config or {})}
        config = {"temperature": _ADAPTERS_TEMPERATURE, **config} if config["layers"] == "all" else config
    # a posterior over the last layer alone does not draw the trunk: all draws share the model's trunk
    last_alone = method == "kfac_laplace" and epochs is None and (config or {}).get("layers", "last") == "last"
    model = plain(model)
    check(model, may_be_tied=last_alone)
    _check(train_loader, lr, chains, random_state, method)
    require(0 <= held_out < 1, "held_out", "must be in [0, 1)", held_out)
    rng = Seed(random_state).fold("bayesianise")
    layout = None if teacher is None else teacher.about.layout
    pad, of_loader = pad_token(model), rng.fold("loader")
    ends: dict[str, Any] = {"pad_token": pad, "sigmoid": type([*model.modules()][-1]) is nn.Sigmoid}
    rows = read_rows(train_loader, "train_loader", rng=of_loader, task=task, layout=layout, **ends)
    start.check_task(chosen, rows.task)
    held = None
    if calibration_loader is not None:
        of_rows: dict[str, Any] = {"task": rows.task, "layout": rows.layout, "pad_token": pad}
        held = read_rows(calibration_loader, "calibration_loader", rng=rng.fold("calibration"), **of_rows)
    elif rows.task == "regression" and epochs is not None and len(rows) >= _FEWEST and held_out > 0:
        rows, held = rows.split(held_out, rng.fold("held_out"))
    probe = torch.from_numpy(rows.examples.inputs[:_PROBED])
    with own_randomness(rng.fold("model")):
        of_classes = rows.task == "classification"
        registered = register(model, rows.layout, probe, head, frozen_trunk=last_alone, classes=of_classes)
        check_labels(rows, task, registered.head.out_features)
        norms = [layer for layer in registered.trunk.modules() if isinstance(layer, BatchNorm)]
        fits = epochs is None or not norms or min(rows.batch, len(rows)) > 1
        rule = "must give batches of two rows or more, as batch norm needs for training"
        require(fits, "train_loader", rule, rows.batch)
        transform = start.transform_of(rows) if teacher is None else teacher.transform
        if held is not None:
            columns = registered.head.out_features if of_classes else rows.examples.targets.shape[1]
            require_targets(held, "calibration_loader", columns)
        data = start.fit_data(rows, registered.head.out_features, transform, device_of(model))
        setting = ModelFit(registered.network, rows.task, len(rows), min(rows.batch, len(rows)), epochs, lr)
        progress = _Progress(report or Silent())
        explained = 0.0
        if held is not None and calibration_loader is None:
            explained = 1 - start.squared_error(start.trajectory(registered, data), registered, data)
        fit = _Fit(chosen, registered, data, setting, dict(config or {}), dict(trajectory or {}), rng, progress)
        state, used = fit.fitted(teacher, chains)
        inner = posterior_of(state, data.device)
    if fit.doubt:
        warnings.warn(fit.doubt, stacklevel=3)
    seen = []
    if rows.task == "regression" and calibration_loader is None:
        seen = [SEEN] if held is None else [HELD.format(len(held), len(held) + len(rows))]
        if explained > _TRAINED_FROM:
            seen.append(TRAINED.format(explained))
        if held_out > 0 and (held is None or explained > _TRAINED_FROM):
            warnings.warn(f"{seen[-1]}, or held_out=0 to accept them", stacklevel=3)
    notes = (*_notes(model, registered, last_alone), *fit.notes, *seen)
    trunk, digest = registered.trunk, registered.config.digest
    facts = digest, trunk.head, rows.layout, trunk.plain_order, to_mapping(used), notes
    about = About(method, rows.task, *facts, shapes=shapes_of(model), sigmoid=trunk.sigmoid)
    some = torch.from_numpy(rows.examples.inputs[:_COMPARED]).to(data.device)
    posterior = ModulePosterior(inner, transform, about, trunk, data.device, some_rows=some)
    return posterior if held is None else posterior.recalibrated_on(held, rng.fold("calibration"))


@final
class _Progress(Report):
    """A report that passes progress on, but no checkpoints: one stage's checkpoint does not fit another stage."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self._report(step, total, metrics)


@dataclass(eq=False)
class _Fit:
    """The stages of a method, on the rows of a loader.

    Attributes:
        notes: notes of the stages on their fits.
        doubt: the note on a model that predicts the training rows badly, if it does and is not trained further.
    """

    _method: Method
    _model: Registered
    _data: FitData
    _setting: ModelFit
    _config: dict[str, object]
    _of_sgd: dict[str, object]
    _rng: Seed
    _report: Report
    notes: list[str] = field(default_factory=list)
    doubt: str = ""

    def fitted(self, teacher: ModulePosterior | None, chains: int) -> tuple[State, object]:
        """Return the posterior's state and the config of the fit."""
        if teacher is not None:
            return self._distilled(teacher)
        first = start.trajectory(self._model, self._data)
        if "doubt" in first.config and self._setting.epochs is None:
            cure = "Is it trained, and are the inputs scaled as in training? To train it here, pass epochs=…"
            self.doubt = f"{first.config['doubt']} {cure}"
            self.notes.append(self.doubt)
        linearised = self._config.get("predictive", "linearised") == "linearised"
        if self._method.name == "kfac_laplace" and self._config.get("layers") == "all" and linearised:
            start.require_linearisable(first, self._data)
        if self._method.name == CHAINS:
            return self._sampled(first, chains)
        if self._setting.epochs is not None and start.starts_with_sgd(self._method):
            first = self._further(first)
        if self._setting.epochs is None:  # nothing is trained, so nothing can train log-variances
            first = start.with_fixed_noise(first, self._model, self._data)
        setting = self._setting
        if self._method.name in INDUCING:
            setting = replace(setting, points=self._points())
        config, stage = self._read(setting, len(first.tensors["head.weight"])), self._method.stages["student"]
        if stage.validate_sources is not None:
            stage.validate_sources(config, {})
        takes = "trajectory" in stage.needs  # inducing weights start fresh; other methods start at the model's weights
        state = self._run(stage, {"trajectory": [first]} if takes else {}, config, self._rng.fold("student"))
        self._note(stage, [state], config)
        return state, config

    def _points(self) -> dict[str, None]:
        """Return patterns of the layers that keep point weights while others get random weights."""
        kind, probe = self._method.name, torch.from_numpy(self._data.train.inputs[:_PROBED])
        names = start.points(self._model.trunk, kind, probe)
        if names:
            shown = _few([name or "the model itself" for name in names])
            self.notes.append(f"{kind} cannot convert {shown}: these weights keep point estimates")
        return {start.pattern(name): None for name in names}

    def _further(self, first: State) -> State:
        """Return the trajectory of further epochs of SGD, which begin at the model."""
        sgd = METHODS["sgd"]
        config: object = read(sgd.config, merge(start.trajectory_section(self._setting), self._of_sgd), "trajectory")
        return self._run(sgd.stages["trajectory"], {"trajectory": [first]}, config, self._rng.fold("trajectory"))

    def _sampled(self, first: State, chains: int) -> tuple[State, object]:
        """Return the average over chains that begin at the model."""
        begin, precision = start.chain_start(first, self._model, self._data)
        config = self._read(replace(self._setting, network=self._model.without_dropout.network, precision=precision))
        stages, rngs = self._method.stages, [self._rng.fold("teacher", chain) for chain in range(chains)]
        states = [self._run(stages["teacher"], {"trajectory": [begin]}, config, rng) for rng in rngs]
        self._note(stages["teacher"], states, config)
        return self._run(stages["student"], {"teacher": states}, config, self._rng.fold("student")), config

    def _distilled(self, teacher: ModulePosterior) -> tuple[State, object]:
        """Return a student that imitates ``teacher``; a plain student with ``start: fresh`` begins at the model."""
        inputs, config = {"student": [teacher.inner.state()]}, self._read(self._setting)
        if config.student.name == "plain" and config.start == "fresh":
            inputs["trajectory"] = [start.trajectory(self._model, self._data)]
        return self._run(self._method.stages["student"], inputs, config, self._rng.fold("student")), config

    def _read(self, setting: ModelFit, snapshots: int = 1) -> Any:
        of_model, fit = self._method.from_model, replace(setting, snapshots=snapshots, config=self._config)
        section = {} if of_model is None else of_model.section(fit)
        return read(self._method.config, merge(section, self._config), "config")

    def _run(self, stage: StageSpec, inputs: Inputs, config: object, rng: Seed) -> State:
        (state,) = Fits(stage.fit_one, config, (SeedFit(self._data, inputs, rng),)).states(self._report)
        if RATE_SHARE in state.config:
            share = state.config[RATE_SHARE]
            self.notes.append(f"the fit diverged and had to be repeated at {share:.2g} of the learning rates; lower lr")
        return state

    def _note(self, stage: StageSpec, states: Sequence[State], config: object) -> None:
        if stage.summarise is not None:
            self.notes += stage.summarise([states], [self._data], config).warnings


def _notes(model: nn.Module, registered: Registered, last_alone: bool) -> list[str]:
    """Return notes on weights that stay as they are, and on a head that is fitted without a gradient."""
    trunk, buffers, notes = registered.trunk, dict(registered.trunk.module.named_buffers()), list[str]()
    frozen = [] if last_alone else [name for name, _ in model.named_parameters() if name in buffers]
    if frozen and not adapted(trunk):
        notes.append(f"the weights {_few(frozen)} are not changed, since they need no gradient")
    needs = any(weight.requires_grad for weight in model.get_submodule(trunk.head).parameters())
    if registered.config.head_trained and not needs:
        rule = "is fitted although its weights need no gradient, since every posterior is over the last layer"
        notes.append(f"{trunk.head} {rule}")
    weight = f"{trunk.head}.weight"
    shared = [one if two == weight else two for one, two in tied(model) if weight in (one, two)]
    if shared and registered.config.head_trained:
        notes.append(f"the posterior is over a copy of {weight}; {shared[0]}, which is the same weight, is not changed")
    return notes


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _check(train_loader: object, lr: float | None, chains: object, random_state: object, method: str) -> None:
    if train_loader is None:
        raise UserError(f"{method} needs train_loader: batches (inputs, targets), or dictionaries with labels")
    require(lr is None or lr > 0, "lr", "must be > 0", lr)
    whole = isinstance(chains, int) and chains > 0
    require(whole, "chains", "must be a whole number > 0", chains)
    if isinstance(random_state, bool) or not isinstance(random_state, int):
        raise UserError(f"random_state must be a whole number, got {short(random_state)}")

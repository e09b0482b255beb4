"""The methods ``ffg_u``, ``fcg_u``, ``ensemble_u`` (inducing weights) and ``ffg_w``, ``fcg_w``, ``matrix_normal_w``,
``k_tied_w``, ``rank1_w`` (weights).

Methods over weights may start with a trajectory's last snapshot as their means; inducing weights have new initial
values. The methods of :data:`~.config.PRUNED` may also start from a fitted posterior of the same kind: the fit prunes
it and trains it further. Running statistics of batch normalisation are recomputed after the fit, on training rows under
new draws.

Source: Ritter, Kukla, Zhang and Li 2021, "Sparse Uncertainty Representation in Deep Learning with Inducing Weights".
"""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, final

from torch import Tensor

from ..artifacts import State
from ..data.fitdata import FitData
from ..data.size import CONVNET, Section, Size
from ..errors import require
from ..method import Default, FromModel, Inputs, Method, ModelFit, StageSpec
from ..method import Kind as StageKind
from ..networks.normalisation import refresh_batch_norm
from ..progress import Report
from ..seeds import Seed
from ..training.fit import fit_epochs
from ..training.learner import FitResult
from ..training.posterior import LearnerPosterior
from .config import PRUNED, Kind
from .learner import RandomConfig, RandomSpec, RandomWeights, require_same_shape

_NORM_ROWS: Final = 4096  # the most training rows for running statistics
_INDUCING: Final[Section] = {"rows": 16, "cols": 16, "lambda_max": 0.3, "lambda_init": 0.1, "prior_scale": 2.0}
_SD: Final[Section] = {"sd_max": 0.3, "sd_init": 0.05}


@final
class RandomWeightsPosterior(LearnerPosterior[RandomWeights]):
    """A fitted :class:`RandomWeights`."""

    key, spec_class, learner_class = "random_weights", RandomSpec, RandomWeights

    @staticmethod
    def finish(spec: RandomSpec, fitted: FitResult, data: FitData, rng: Seed) -> dict[str, Tensor]:
        """Recompute running statistics, if any, on training rows under new draws."""
        if not any(name.endswith(".running_mean") for name in fitted.state):
            return fitted.state
        learner = RandomWeights(spec, Seed(0))
        learner.load_state_dict(fitted.state)
        learner.net.draws_outputs = spec.config.prediction_draws == "outputs"
        learner.to(data.device).net.reseed(rng.fold("normalisation"))
        inputs, _ = data.drawn(_NORM_ROWS, rng.fold("normalisation", "rows"))
        refresh_batch_norm(learner.net, inputs, spec.config.training.batch)
        return {name: tensor.detach().cpu() for name, tensor in learner.state_dict().items()}


def fit(
    data: Sequence[FitData], inputs: Sequence[Inputs], config: RandomConfig, *, rngs: Sequence[Seed], report: Report
) -> list[State]:
    """Fit a posterior to each of ``data``; a posterior in the inputs is pruned and trained with a new optimiser.

    Raises:
        ConfigError: a full covariance is over too many weights, the trajectory has another network, or
            :func:`validate_sources` fails.
        UserError: the posterior to prune is already pruned.
    """
    if config.prune is None and not any(sources.get("student") for sources in inputs):
        return RandomWeightsPosterior.fit(data, inputs, config, rngs=rngs, report=report)
    assert len(data) == 1, "pruned posteriors are of different shapes: each is fitted alone"
    source = None
    for state in inputs[0].get("student", ()):
        key = state.config["posterior"]
        require(key == RandomWeightsPosterior.key, "input", f"must be a posterior {RandomWeightsPosterior.key}", key)
        source = RandomWeightsPosterior.from_state(state).learner
    validate_sources(config.weights.kind, config, {} if source is None else {"student": source.spec.config})
    assert source is not None
    pruned = RandomWeights.pruned(source, config)
    assert (pruned.spec.input_shape, pruned.spec.outputs) == (data[0].input_shape, data[0].outputs), "one data set"
    (fitted,) = fit_epochs(lambda *_: copy.deepcopy(pruned), data, config.training, rngs=rngs, report=report)
    return [RandomWeightsPosterior.fitted_state(pruned.spec, fitted, data[0], rngs[0])]


def validate_sources(kind: Kind, config: RandomConfig, sources: Mapping[StageKind, Any]) -> None:
    """Check the config of the method ``kind``, and the configs of its inputs: a posterior, a trajectory, or none.

    Raises:
        ConfigError: ``weights.kind`` does not match the method; only one of ``prune`` and an input posterior is given;
            the posterior is of another method, network or weights, or is already pruned; early stopping is set although
            the posterior was fitted to the validation rows; or both a posterior and a trajectory are given.
    """
    require(config.weights.kind == kind, "weights.kind", f"must be {kind}", config.weights.kind)
    source = sources.get("student")
    if source is None:
        rule = "must be null without a posterior as input (input: student/<run>)"
        require(config.prune is None, "prune", rule, config.prune)
        return
    require(len(sources) == 1, "input", "must be a posterior or a trajectory, not both")
    other = source.weights.kind if isinstance(source, RandomConfig) else type(source).__name__
    require(other == kind, "input", f"must be a run of {kind}", other)
    require(config.prune is not None, "prune", "must be a share in (0, 1) with a posterior as input", None)
    rule = "must be a posterior that is not pruned itself"
    require(source.prune is None, "input", rule, f"one with prune: {source.prune}")
    require_same_shape(config, source)
    rule = "must be null with a posterior as input, which was fitted to the validation rows"
    require(config.training.early_stopping is None, "training.early_stopping", rule, config.training.early_stopping)


def _method(kind: Kind, cost: float = 0.0, weights: Section | None = None, settings: Section | None = None) -> Method:
    """Return the method of a kind of weights.

    Args:
        weights: the keys of ``weights`` in the method's default with this ``cost``; None for no default.
        settings: see :class:`Method`.
    """
    of_weights = kind.endswith("_w")
    search: dict[str, tuple[float, float, Literal["log"]]] = {
        "training.optimiser.lr": (1e-4, 1e-2, "log"),
        "kl_weight": (1e-2, 1.0, "log"),
    }
    if not of_weights:
        search["weights.lambda_max"] = (1e-2, 1.0, "log")
    if kind != "ensemble_u":
        search["weights.sd_max"] = (1e-2, 1.0, "log")
    trajectory: tuple[StageKind, ...] = ("trajectory",) if of_weights else ()
    posterior: tuple[StageKind, ...] = ("student",) if kind in PRUNED else ()
    stage = StageSpec(
        fit_many=fit,
        needs=dict.fromkeys((*trajectory, *posterior), "one_to_one"),
        input_optional=True,
        data_parallel=True,
        validate_sources=partial(validate_sources, kind),
    )

    def override(size: Size) -> Section:
        return {
            "network": size.network,
            "training": size.training(1e-2, decay=0.0, name="adam", regularised=True),
            "weights": {"kind": kind, **(weights or {})},
            "draws": 30,
            "validation_draws": 10,
            "kl_weight": 0.2,
            "annealing": None,
            **size.noise,
        }

    return Method(
        name=kind,
        family="inducing",
        bayesian=True,
        config=RandomConfig,
        tasks=("classification", "regression"),
        stages={"student": stage},
        search=search,
        settings=settings or {},
        default=Default(cost, override=override) if weights else None,
        from_model=FromModel(partial(_from_model, kind)),
    )


def _from_model(kind: Kind, fit: ModelFit) -> Section:
    from_u = {"rows": 16, "cols": 16, "lambda_max": 0.3, "lambda_init": 0.1}
    weights = {"kind": kind, **(from_u if kind.endswith("_u") else {}), **({} if kind == "ensemble_u" else _SD)}
    noise = {"noise_variance": 0.1} if fit.task == "regression" else {}
    return {
        "network": fit.network,
        "training": fit.training(1e-2 if kind.endswith("_u") else 1e-3, name="adam", weight_decay=0.0),
        "weights": weights,
        "draws": fit.draws,
        "validation_draws": 5,
        "annealing": {"start": 0.0, "end": max(1.0, (fit.epochs or 1) / 2)},
        "layers": dict(fit.points or {}),
        "training_draws": "weights",  # rows of zeros determine the shapes of outputs
        **noise,
    }


FFG_U = _method("ffg_u", 6.0, {**_INDUCING, **_SD})
FCG_U = _method(
    "fcg_u",
    settings={
        "network": CONVNET,
        "training": {
            "epochs": 4,
            "batch": 64,
            "optimiser": {"name": "adam", "lr": 1e-2, "schedule": "one_cycle", "warmup": 0.2},
        },
        "weights": {"kind": "fcg_u", "rows": 16, "cols": 16, "lambda_max": 0.1},
        "draws": 5,
        "validation_draws": 5,
        "annealing": {"start": 1.0, "end": 2.0},
    },
)
ENSEMBLE_U = _method("ensemble_u", 8.0, {**_INDUCING, "members": 5}, {"noise_variance": 0.1})
FFG_W = _method("ffg_w", 3.0, _SD, {"noise_variance": 0.1})
FCG_W = _method("fcg_w")
MATRIX_NORMAL_W = _method("matrix_normal_w", 3.0, _SD)
K_TIED_W = _method("k_tied_w", 3.0, {**_SD, "rank": 2})
RANK1_W = _method("rank1_w", 3.0, {**_SD, "members": 5})

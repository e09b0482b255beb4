"""The hyperparameters and the cost of every method that ``add`` offers, as functions of a data set's size.

They are chosen so that nothing diverges. Inputs lie in (−3, 3) and targets are standardised, so that learning rates do
not depend on units; gradients are clipped; a network's noise variance has a floor; lengths are counted in steps, not in
epochs; a chain's step is divided by the rows and by the precision of their noise (``scaled``). A fit that diverges all
the same is repeated at a smaller learning rate (``bdl_pipe.training.retry``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bdl_pipe.data.raw import Task
from bdl_pipe.method import Kind

from .size import Section, Size

_EXACT_GP: Final = 3_000  # The exact process is affordable up to this many training rows.
_COLLAPSED: Final = 100_000  # Exact integrals take 15 s per 1,000 predictions, and a tenth of the rows is predicted.
_EXACT_LAYER: Final = 5_000_000  # An exact last layer is affordable up to this many rows times features.
_SNAPSHOTS: Final = 20
_EXTRA_EPOCHS: Final = 4  # In more epochs after the chosen one a network memorises few rows.
_CORESET: Final = 10  # images of each class
_TAIL: Final = 0.2  # A triangle has no tail, but a few rows have targets beyond it.
_FEATURE_DECAY: Final = 5.0  # Few rows are seen by the features and by the exact layer, which would fit noise twice.
_INDUCING: Final = {"rows": 16, "cols": 16, "lambda_max": 0.3, "lambda_init": 0.1, "prior_scale": 2.0}
_SUBSPACE: Final = {"dimension": 3, "rows": 1000, "batch": 500}
_BOTH: Final[tuple[Task, ...]] = ("regression", "classification")
_REGRESSION: Final[tuple[Task, ...]] = ("regression",)
_CLASSIFICATION: Final[tuple[Task, ...]] = ("classification",)


@dataclass(frozen=True)
class Upstream:
    """A run that runs of several methods are made from.

    Attributes:
        cost: its time, in units of 2,000 steps of a plain network; measured.
        override: the hyperparameters that differ from ``methods.<method>``.
    """

    kind: Kind
    method: str
    seeds: int
    cost: float
    override: Callable[[Size], Section]


@dataclass(frozen=True)
class Default:
    """A method of the comparison.

    Attributes:
        tasks: the tasks that it is offered for.
        upstream: the key in ``UPSTREAM`` of the run that it is made from; empty: it is made from the data alone.
        cost: its time, in units of 2,000 steps of a plain network; measured.
        override: the hyperparameters that differ from ``methods.<name>``.
        fits: whether it is affordable and defined at a size.
    """

    tasks: tuple[Task, ...]
    upstream: str
    cost: float
    override: Callable[[Size], Section] = lambda size: {}
    fits: Callable[[Size], bool] = lambda size: True


def sgd(size: Size) -> Section:
    """Return the networks from which other methods start."""
    floor = {"variance_floor": 1.0e-2 if size.train < 1_000 else 1.0e-3} if size.task == "regression" else {}
    return {"network": size.network, "snapshots": 1, "augmentation": None, **size.training(), **floor}


def iterates(size: Size) -> Section:
    """Return twenty snapshots at a constant rate, from the epochs after the chosen one or after a network's end."""
    snapshots = _SNAPSHOTS
    if size.small:
        per_epoch = min(size.steps_per_epoch, _SNAPSHOTS)
        extra = min(_EXTRA_EPOCHS, -(-_SNAPSHOTS // per_epoch))
        snapshots = min(snapshots, extra * per_epoch)
        more: Section = {"extra_epochs": extra}
    else:
        epochs = max(2, size.epochs(600))
        per_epoch = max(1, -(-_SNAPSHOTS // epochs))
        more = {"epochs": epochs, "optimiser": {**size.optimiser(1e-3), "schedule": "constant"}}
    return {**sgd(size), **more, "snapshots": snapshots, "snapshots_per_epoch": per_epoch}


def sgld(size: Size) -> Section:
    """Return chains with a step that follows from the rows and their noise."""
    burn_in, kept, count = size.steps(2_000), size.steps(2_000), 50
    every = max(1, kept // count)
    return {
        "target": {
            "network": size.network,
            "prior_precision": 2.0,
            "noise_precision": None,
            "step_size": {"name": "scaled", "value": 0.1},
            "batch": 3 * size.batch,
        },
        "thinning": {"steps": burn_in + count * every, "burn_in": burn_in, "every": every},
    }


def vbpc(size: Size) -> Section:
    """Return a coreset under the shallow and wide network that the closed form needs (results/vbpc)."""
    return {
        **random_coreset(size),
        "coreset": {"steps": size.steps(400), "batch": min(128, size.train)},
    }


def random_coreset(size: Size) -> Section:
    """Return images drawn at random, with the posterior of ``vbpc``."""
    network = {**size.convnet(8, 32), "pool": "average"}
    return {"ipc": min(_CORESET, max(1, size.fewest // 3)), "network": network}


def _last_layer(size: Size) -> Section:
    return {"network": size.network, "training": size.training()}


def _noise(size: Size) -> Section:
    return {"noise_variance": 0.1} if size.task == "regression" else {}


def _weights(size: Size, kind: Section) -> Section:
    return {
        "network": size.network,
        "training": size.training(1e-2, decay=0.0, name="adam"),
        "weights": kind,
        "draws": 30,
        "validation_draws": 10,
        "kl_weight": 0.2,
        "annealing": None,
        **_noise(size),
    }


def _sngp(size: Size) -> Section:
    """Return a trunk of bounded norms; on images it needs group norm and twice the learning rate (methods.sngp)."""
    network = size.network if size.image is None else {**size.network, "norm": "group"}
    return {"network": network, "features": 512, "training": size.training(5e-3 if size.image is None else 1e-2)}


def _map_blr(size: Size) -> Section:
    return {"network": size.network, "training": size.training(decay=_FEATURE_DECAY if size.small else None)}


def _svgp(size: Size) -> Section:
    training = {"epochs": size.epochs(2_000), "batch": size.batch, "optimiser": {"lr": 2e-2}}
    return {"inducing": 200, "training": training}


def _dark_knowledge(size: Size) -> Section:
    return {
        "network": size.network,
        "inputs": {"name": "noisy_training", "noise": 0.2},
        "batch": size.batch,
        "steps": size.steps(2_000),
        "optimiser": {"lr": 5.0e-3, "warmup": 0.3, "grad_clip_norm": 1.0},
    }


def _bnn(size: Size) -> Section:
    first = {"network": size.network, "stochastic": "all", "initial_sd": 0.05, "kl_weight": 0.2, "draws": 30}
    return {**first, "training": size.training(decay=0.0), **_noise(size)}


def _dropout(size: Size) -> Section:
    return {"network": size.network, "rate": 0.1, "draws": 30, "training": size.training(), **_noise(size)}


UPSTREAM: Final[Mapping[str, Upstream]] = {
    "sgd": Upstream("trajectory", "sgd", 3, 3.0, sgd),
    "iterates": Upstream("trajectory", "sgd", 1, 0.5, iterates),
    "sgld": Upstream("teacher", "sgld", 3, 6.0, sgld),
    "vbpc": Upstream("coreset", "vbpc", 1, 4.0, vbpc),
    "random_coreset": Upstream("coreset", "random_coreset", 1, 0.2, random_coreset),
}
METHODS: Final[Mapping[str, Default]] = {
    "deterministic": Default(_BOTH, "sgd", 0.1),
    "ensemble": Default(_BOTH, "sgd", 0.1),
    "swa": Default(_CLASSIFICATION, "iterates", 0.1),
    "swag": Default(
        _BOTH, "iterates", 0.2, lambda size: {"rank": min(10, iterates(size)["snapshots"] - 1), "draws": 20}
    ),
    "pca_ess": Default(_CLASSIFICATION, "iterates", 1.0, lambda size: {**_SUBSPACE, "temperature": 10.0, "draws": 10}),
    "pca_vi": Default(
        _CLASSIFICATION, "iterates", 0.5, lambda size: {"dimension": 3, "temperature": 10.0, "draws": 10}
    ),
    "kfac_laplace": Default(_CLASSIFICATION, "iterates", 0.5, lambda size: {"temperature": 0.1} if size.image else {}),
    "ciber": Default(_CLASSIFICATION, "iterates", 0.3),
    "ciber_last": Default(
        _REGRESSION, "iterates", 0.5, lambda size: {"tail": _TAIL}, lambda size: size.rows <= _COLLAPSED
    ),
    "ciber_second": Default(
        _REGRESSION, "iterates", 0.5, lambda size: {"tail": _TAIL}, lambda size: size.rows <= _COLLAPSED
    ),
    "vbll": Default(_REGRESSION, "", 1.6, lambda size: {**_last_layer(size), "layer": {"wishart_scale": 1.0}}),
    "d_vbll": Default(_CLASSIFICATION, "", 1.6, _last_layer),
    "g_vbll": Default(_CLASSIFICATION, "", 2.0, _last_layer),
    "sngp": Default(_BOTH, "", 1.6, _sngp),
    "map_blr": Default(_REGRESSION, "", 1.0, _map_blr, lambda size: size.train * (size.hidden[-1] + 1) <= _EXACT_LAYER),
    "gp": Default(_REGRESSION, "", 3.0, fits=lambda size: size.train <= _EXACT_GP),
    "svgp": Default(_REGRESSION, "", 12.0, _svgp, lambda size: size.train > _EXACT_GP),
    "sgld": Default(_BOTH, "sgld", 6.0, lambda size: {"student": {"max_draws": 100}}),
    "dark_knowledge": Default(_BOTH, "sgld", 2.0, _dark_knowledge),
    "vbpc": Default(_CLASSIFICATION, "vbpc", 4.0, vbpc, lambda size: size.image is not None),
    "random_coreset": Default(
        _CLASSIFICATION, "random_coreset", 0.2, random_coreset, lambda size: size.image is not None
    ),
    "ffg_u": Default(
        _BOTH, "", 6.0, lambda size: _weights(size, {"kind": "ffg_u", **_INDUCING, "sd_max": 0.3, "sd_init": 0.05})
    ),
    "ensemble_u": Default(
        _BOTH, "", 8.0, lambda size: _weights(size, {"kind": "ensemble_u", **_INDUCING, "members": 5})
    ),
    "ffg_w": Default(_BOTH, "", 3.0, lambda size: _weights(size, {"kind": "ffg_w", "sd_max": 0.3, "sd_init": 0.05})),
    "bnn": Default(_BOTH, "", 3.0, _bnn),
    "dropout": Default(_BOTH, "", 1.5, _dropout),
}


def upstream_of(chosen: Sequence[str], size: Size) -> list[str]:
    """List the upstream runs of the chosen methods; the iterates of many rows start at the end of ``sgd``."""
    names = {METHODS[method].upstream for method in chosen}
    names |= {"sgd"} if "iterates" in names and not size.small else set()
    return [name for name in UPSTREAM if name in names]

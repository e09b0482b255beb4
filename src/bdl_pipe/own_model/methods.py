"""The methods that can start from a user's model, with their other inputs and their default hyperparameters.

A registered method can start from a user's model if its input is one trajectory, or if it may start from one. So can
inducing weights, which are converted from the network, chains, and a distilled student.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from ..config import nearest
from ..data.examples import Task
from ..data.size import Section
from ..errors import UserError
from ..inducing.config import Kind
from ..method import Method
from ..registry import METHODS

SNAPSHOTS: Final = ("swa", "swag", "pca_ess", "pca_vi", "ciber", "ciber_last")
INDUCING: Final = get_args(Kind)
LAST_LAYERS: Final = ("vbll", "d_vbll", "g_vbll")
CHAINS: Final = "sgmcmc"
STUDENT: Final = "dark_knowledge"
TRAINED: Final = (*LAST_LAYERS, *INDUCING, CHAINS, STUDENT)  # methods that train without epochs of SGD first
OWN: Final = ("deterministic", "kfac_laplace", *SNAPSHOTS, *LAST_LAYERS, *INDUCING, CHAINS, STUDENT)
_WHY: Final = {  # a method that trains -> the reason why it needs ``epochs``
    **dict.fromkeys(SNAPSHOTS, "give the number of epochs of SGD that start at the model and make its snapshots"),
    **dict.fromkeys((*LAST_LAYERS, *INDUCING), "give the number of epochs of its training"),
    CHAINS: "give the number of epochs of each chain, which starts at the model",
    STUDENT: "give the length of the student's training, in epochs",
}
_SNAPSHOTS: Final = 20  # snapshots of the further epochs of SGD
_DRAWS: Final = 20
_KEPT: Final = 20  # draws of a chain, each as large as the model
# Two chains of 20 independent draws keep these bounds: the worst R-hat of 33 independent functions was at most 1.32 in
# 60 trials, and the least effective number of draws 7. They break the bounds of long chains, 1.05 and 100.
_MAX_RHAT: Final = 1.4
_MIN_ESS: Final = 6
_STEPS_OF_PCA: Final = 60


@dataclass(frozen=True)
class Setting:
    """The facts from which hyperparameters are derived.

    Attributes:
        network: the section ``network``.
        task: ``classification`` or ``regression``.
        rows, batch: the number of training rows, and of rows in a step.
        epochs: the number of additional epochs. None adds no epoch.
        lr: the learning rate. None takes the method's rate.
        precision: λ_n of a chain's targets; None for classes.
        points: for inducing weights, patterns of layers that keep point weights.
    """

    network: Section
    task: Task
    rows: int
    batch: int
    epochs: int | None
    lr: float | None
    precision: float | None = None
    points: Mapping[str, None] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of whole batches in an epoch."""
        return max(1, self.rows // self.batch)

    @property
    def steps(self) -> int:
        """Return the number of steps of all epochs."""
        return (self.epochs or 1) * self.steps_per_epoch

    def training(self, lr: float, **optimiser: Any) -> Section:
        """Return the section ``training``, with the user's learning rate or else the method's rate ``lr``."""
        rule = {"name": "adamw", "lr": self.lr or lr, "schedule": "cosine", "weight_decay": 0.01, "grad_clip_norm": 1.0}
        return {"epochs": self.epochs or 1, "batch": self.batch, "optimiser": {**rule, **optimiser}}


def method_of(name: str) -> Method:
    """Return a method that can start from a user's model.

    Raises:
        UserError: no method has this name, or the method cannot start from a model.
    """
    if name not in METHODS:
        raise UserError(f"method must be one of {', '.join(OWN)}, got {name!r}{nearest(name, METHODS)}")
    method = METHODS[name]
    plugin = METHODS.module_of(name) is not None
    student = method.stages.get("student")
    if name not in OWN and not (plugin and student is not None and dict(student.needs) == {"trajectory": "one_to_one"}):
        needs = "it makes no posterior" if student is None else f"it is made from {_sources(method)}"
        raise UserError(f"method must be able to start from a model ({', '.join(OWN)}), got {name}: {needs}")
    return method


def check_task(method: Method, task: Task) -> None:
    """Raise UserError if a method does not predict the task."""
    if task not in method.tasks:
        others = [other for other in OWN if task in METHODS[other].tasks]
        raise UserError(f"method must support {task} ({', '.join(others)}), got {method.name}")


def check_needs(name: str, epochs: object, teacher: object) -> None:
    """Raise UserError if a method lacks an argument that it needs."""
    if name == STUDENT and teacher is None:
        raise UserError("dark_knowledge needs teacher: give the posterior of an earlier call, which the model imitates")
    if name != STUDENT and teacher is not None:
        raise UserError(f"teacher is for dark_knowledge only; leave it out for {name}")
    if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1):
        raise UserError(f"epochs must be a whole number > 0, got {epochs!r}")
    if name in _WHY and epochs is None:
        raise UserError(f"{name} needs epochs: {_WHY[name]}")


def _sources(method: Method) -> str:
    if method.name == "ciber_second":
        return "the layers of this library's own mlp"
    needs = method.stages["student"].needs
    plural = {"trajectory": "several trajectories", "coreset": "a coreset"}
    named = [plural.get(kind, kind) for kind, rule in needs.items() if rule == "all" or kind == "coreset"]
    return " and ".join(named) or "the data alone, with a network of its own"


def trajectory_section(setting: Setting) -> Section:
    """Return ``methods.sgd`` for more epochs at a constant rate, with snapshots in each."""
    assert setting.epochs is not None
    per_epoch = min(setting.steps_per_epoch, -(-_SNAPSHOTS // setting.epochs))
    snapshots = min(_SNAPSHOTS, setting.epochs * per_epoch)
    training = setting.training(1e-3, schedule="constant")
    kept = {"snapshots": snapshots, "snapshots_per_epoch": per_epoch}
    return {"network": setting.network, "augmentation": None, "early_stopping": None, **kept, **training}


def section(name: str, setting: Setting, snapshots: int, layers: str = "last") -> Section:
    """Return the hyperparameters of a method; empty for a plugin's method.

    Args:
        snapshots: the number of snapshots of the method's trajectory.
        layers: the layers of ``kfac_laplace``.
    """
    norm = {"batch_norm_rows": 2048, "batch_norm_batch": max(2, setting.batch)}
    subspace = {"dimension": max(1, min(5, snapshots - 1)), "prior_variance": 1.0, "draws": _DRAWS, **norm}
    layer = {"prior_variance": 1.0, "wishart_dof": 1.0, "wishart_scale": 1.0, "kl_weight": 1.0}
    gaussian = {**layer, "covariance": "dense", "rank": None}
    trained = {"network": setting.network, "training": setting.training(1e-3)}
    sections: dict[str, Section] = {
        "swa": norm,
        "swag": {"rank": 0 if snapshots < 3 else min(10, snapshots - 1), "scale": 1.0, "draws": _DRAWS, **norm},
        "kfac_laplace": {
            "layers": layers,
            "prior_precision": None,
            "temperature": 1.0,
            "rows": None,
            "predictive": "draws" if layers == "last" else "linearised",  # Draws of all layers underfit (Immer 2021).
            "max_factor": 4096,
            "draws": _DRAWS,
            **norm,
        },
        "ciber": {"form": {"name": "exact", "weights": 1}},
        "ciber_last": {"weights": 3, "radius": "variance", "tail": 0.01},
        "pca_ess": {"temperature": 1000.0, "rows": 1000, "burn_in": 5, "every": 3, "batch": 500, **subspace},
        "pca_vi": {
            "temperature": 100.0,
            "rows": None,
            "initial_sd": 0.1,
            "steps": _STEPS_OF_PCA,
            "samples": 1,
            "batch": 250,
            "optimiser": {"name": "adam", "lr": 0.03, "schedule": "cosine"},
            **subspace,
        },
        "vbll": {**trained, "layer": gaussian},
        "d_vbll": {**trained, "layer": {**gaussian, "covariance": "diagonal", "predictive": "quadrature"}},
        "g_vbll": {**trained, "layer": {**layer, "dirichlet": 1.0, "refit": True}},
        CHAINS: _chains(setting),
        STUDENT: _student(setting),
    }
    sections |= {kind: _inducing(kind, setting) for kind in INDUCING}
    return sections.get(name, {})


def _chains(setting: Setting) -> Section:
    steps = max(setting.steps, _KEPT)
    burn_in = steps // 5
    return {
        "target": {"network": setting.network, "prior_precision": 1.0, "noise_precision": setting.precision},
        "sampler": {
            "kernel": {"name": "sghmc", "friction": 0.1},
            "step_size": {"name": "scaled", "rate": setting.lr or 0.003},
            "batch": setting.batch,
        },
        "thinning": {"steps": steps, "burn_in": burn_in, "every": max(1, (steps - burn_in) // _KEPT)},
        "diagnostics": {"rows": 32, "max_rhat": _MAX_RHAT, "min_ess": _MIN_ESS},
        "student": {"max_draws": None},
    }


def _student(setting: Setting) -> Section:
    return {
        "network": setting.network,
        "student": {"name": "plain"},
        "mode": {"name": "offline", "max_draws": None},
        "inputs": {"name": "noisy_training", "noise": 0.0},  # no noise: inputs may be whole numbers
        "batch": setting.batch,
        "steps": setting.steps,
        "optimiser": setting.training(1e-3, weight_decay=0.0)["optimiser"],
    }


def _inducing(kind: str, setting: Setting) -> Section:
    from_u = {"rows": 16, "cols": 16, "lambda_max": 0.3, "lambda_init": 0.1}
    sds = {"sd_max": 0.3, "sd_init": 0.05}
    weights = {"kind": kind, **(from_u if kind.endswith("_u") else {}), **({} if kind == "ensemble_u" else sds)}
    noise = {"noise_variance": 0.1} if setting.task == "regression" else {}
    return {
        "network": setting.network,
        "training": setting.training(1e-2 if kind.endswith("_u") else 1e-3, name="adam", weight_decay=0.0),
        "weights": weights,
        "draws": _DRAWS,
        "validation_draws": 5,
        "annealing": {"start": 0.0, "end": max(1.0, (setting.epochs or 1) / 2)},
        "layers": dict(setting.points or {}),
        "training_draws": "weights",  # rows of zeros determine the shapes of outputs
        **noise,
    }

"""The methods that can start at a user's model, and what they need besides it.

A registered method can start at a user's model if it says how (``Method.from_model``). So can the method of a plugin
whose only input is one trajectory.
"""

from typing import Final, get_args

from ..config import nearest
from ..data.examples import Task
from ..data.size import Section
from ..errors import UserError
from ..inducing.config import Kind
from ..method import Method, ModelFit
from ..registry import METHODS

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
        needs = "it makes no posterior" if student is None else f"it is made from {_sources(method)}"
        raise UserError(f"method must be able to start from a model ({', '.join(able())}), got {name}: {needs}")
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
        raise UserError("dark_knowledge needs teacher: give the posterior of an earlier call, which the model imitates")
    if name != STUDENT and teacher is not None:
        raise UserError(f"teacher is for dark_knowledge only; leave it out for {name}")
    if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1):
        raise UserError(f"epochs must be a whole number > 0, got {epochs!r}")
    if epochs is None and method.from_model is not None and method.from_model.needs_epochs:
        why = {
            CHAINS: "give the number of epochs of each chain, which starts at the model",
            STUDENT: "give the length of the student's training, in epochs",
        }
        usual = "give the number of epochs of its training"
        if starts_with_sgd(method):
            usual = "give the number of epochs of SGD that start at the model and make its snapshots"
        raise UserError(f"{name} needs epochs: {why.get(name, usual)}")


def starts_with_sgd(method: Method) -> bool:
    """Return whether epochs of SGD, which make a trajectory, come before the method's own fit."""
    return method.from_model is None or "trajectory" in method.stages["student"].required


def _sources(method: Method) -> str:
    stage = method.stages["student"]
    needs = stage.needs
    if "trajectory" in stage.required and needs["trajectory"] == "one_to_one":
        return "the layers of this library's own mlp"
    plural = {"trajectory": "several trajectories", "coreset": "a coreset"}
    named = [plural.get(kind, kind) for kind, rule in needs.items() if rule == "all" or kind == "coreset"]
    return " and ".join(named) or "the data alone, with a network of its own"


def trajectory_section(fit: ModelFit) -> Section:
    """Return ``methods.sgd`` for more epochs at a constant rate, with snapshots in each."""
    assert fit.epochs is not None
    per_epoch = min(fit.steps_per_epoch, -(-fit.draws // fit.epochs))
    snapshots = min(fit.draws, fit.epochs * per_epoch)
    training = fit.training(1e-3, schedule="constant")
    kept = {"snapshots": snapshots, "snapshots_per_epoch": per_epoch}
    return {"network": fit.network, "augmentation": None, "early_stopping": None, **kept, **training}

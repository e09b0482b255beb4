"""The smallest configs that every registered method can be made with, for the conformance test.

A new method adds its config for each of its tasks to ``CONFIGS``, or for all of them to ``ALIKE``. A variant of a
listed method, with the same class of configs, adds nothing.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors.torch import save_file

from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.method import Kind, Method, StageSpec
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed

CONVNET = {"name": "convnet", "width": 4, "blocks": 2}
MLP = {"name": "mlp", "hidden": [8]}
ADAM = {"name": "adam", "lr": 1.0e-2, "schedule": "one_cycle"}

_FOLDER = tempfile.TemporaryDirectory()  # holds the weights of the ``pretrained`` configs


def weights_of(network: Mapping[str, Any], shape: list[int], outputs: int, likelihood: str) -> str:
    """Write the initial weights of a network to a file, and return its path."""
    section = {"network": network, "input_shape": shape, "outputs": outputs, "likelihood": likelihood}
    path = Path(_FOLDER.name) / f"{network['name']}.safetensors"
    save_file(read(NetworkSpec, section, "spec").build(Seed(0)).state_dict(), path)
    return str(path)


SGMCMC = {
    "target": {"network": MLP, "prior_precision": 1.0, "noise_precision": 10.0},
    "sampler": {"kernel": {"name": "sgld"}, "step_size": {"name": "constant", "value": 1.0e-4}, "batch": 16},
    "thinning": {"steps": 230, "burn_in": 100, "every": 10},
    "diagnostics": {"rows": 8, "max_rhat": 1.05, "min_ess": 100.0},
    "student": {"max_draws": None},
}
DARK_KNOWLEDGE = {
    "network": MLP,
    "student": {"name": "plain"},
    "mode": {"name": "offline", "max_draws": None},
    "inputs": {"name": "noisy_training", "noise": 0.1},
    "batch": 16,
    "steps": 60,
    "optimiser": ADAM,
}
NORMS = {"batch_norm_rows": 64, "batch_norm_batch": 32}
SWAG = {"rank": 2, "scale": 0.5, "draws": 3, **NORMS}
SUBSPACE = {"dimension": 1, "temperature": 2.0, "prior_variance": 1.0, "rows": 70, "draws": 3, "batch": 64, **NORMS}
PCA_ESS = {**SUBSPACE, "burn_in": 3, "every": 2}
PCA_VI = {**SUBSPACE, "initial_sd": 0.5, "steps": 6, "samples": 2, "optimiser": {"name": "adam", "lr": 1.0e-2}}
LAPLACE = {
    "layers": "all",
    "prior_precision": None,
    "temperature": 0.1,
    "rows": 50,
    "predictive": "draws",
    "max_factor": 600,
    "draws": 3,
    **NORMS,
}
SNGP = {
    "network": MLP,
    "features": 16,
    "length_scale": 2.0,
    "norm_bound": 1.0,
    "ridge": 1.0,
    "training": {"epochs": 3, "batch": 32, "optimiser": ADAM},
}
HEAD = {"ipc": 2, "network": {**CONVNET, "norm": "instance"}, "rho": 1.0, "gamma": 100.0, "feature_scale": 1.0}
NOISE = {"choose": "all", "operations": {"noise": 0.1}}
ON_CORESET = {"student": {"steps": 4, "lr": 1.0e-3, "augmentation": NOISE}}
VBPC = {
    **HEAD,
    **ON_CORESET,
    "beta_dataset": 1.0e-8,
    "coreset": {
        "steps": 8,
        "batch": 16,
        "lr": 1.0e-2,
        "label_lr": 1.0e-1,
        "label_scale": 1.0,
        "pool": {"networks": 2, "steps": 3, "lr": 1.0e-3},
        "augmentation": NOISE,
    },
}
STEADY = {"name": "adam", "lr": 1.0e-2}
INNER = {"steps": 3, "lr": 0.05, "ahead": 1}
BPC = {
    "ipc": 2,
    "start_epochs": 1,
    "outer": {"steps": 6, "optimiser": {"name": "adam", "lr": 1.0e-2}, "augmentation": NOISE, "average": 0.9},
}
CONTRASTIVE = {
    "chains": 2,
    "sd": 0.01,
    "steps": 2,
    "step_size": 0.01,
    "temperature": 1.0,
    "weight": 1.0,
    "prior_precision": 1.0,
}
TRAINED_ON_CORESET = {
    "network": HEAD["network"],
    "steps": 6,
    "batch": 4,
    "optimiser": ADAM,
    "augmentation": NOISE,
    "logit_scale": 5.0,
}
CLOSED_FORM = {name: HEAD[name] for name in ("network", "rho", "gamma", "feature_scale")}
LEARN = {"epochs": 4, "batch": 16, "optimiser": STEADY, "early_stopping": {"every": 2, "patience": None}}
WHOLE = {**LEARN, "early_stopping": None}  # runs all of its epochs
IMAGES = {"network": CONVNET, "training": WHOLE}
GAUSSIAN = {
    "covariance": "dense",
    "rank": None,
    "prior_variance": 1.0,
    "wishart_dof": 1.0,
    "wishart_scale": 1.0,
    "kl_weight": 1.0,
}
GENERATIVE = {
    "dirichlet": 1.0,
    "prior_variance": 1.0,
    "wishart_dof": 8.0,
    "wishart_scale": 1.0,
    "kl_weight": 1.0,
    "refit": True,
}
FEATURES = {"initial_sd": 0.05, "kl_weight": 1.0, "draws": 3, "validation_draws": 2}
BY_DRAWS = {"network": MLP, "training": WHOLE, "draws": 3, "validation_draws": 2}
BNN = {**BY_DRAWS, "stochastic": "all", "initial_sd": 0.05}
DROPOUT = {**BY_DRAWS, "rate": 0.2}
HELD_OUT = {**LEARN, "early_stopping": {"every": 2, "patience": None}, "noise": "validation"}
TABM = {"network": MLP, "members": 3}

GBLL = {
    "network": MLP,
    "epochs": 6,
    "optimiser": {**STEADY, "grad_clip_norm": 1.0},
    "early_stopping": {"every": 2, "patience": None},
    "prior_variance": 1.0,
    "noise_variance": 0.1,
}
LEAKY = {**MLP, "activation": "leaky_relu"}
LATENT = {"derivative_variance": 1.0, "weight": 0.1, "derivative_rows": 20}

RANDOM = {
    "network": MLP,
    "training": LEARN,
    "weights": {"kind": "ffg_u", "rows": 6, "cols": 5},
    "draws": 4,
    "validation_draws": 2,
    "annealing": {"start": 1.0, "end": 3.0},
}
RANDOM_IMAGES = {**RANDOM, **IMAGES}
MEMBERS = {"kind": "ensemble_u", "rows": 6, "cols": 5, "members": 2, "lambda_max": 0.1}
MEAN_FIELD = {"kind": "ffg_w", "sd_max": 0.1}

BOOSTING = {"rounds": 30, "learning_rate": 0.1, "leaves": 4, "folds": 2, "noise": "best"}

ALIKE: Mapping[str, dict[str, Any]] = {  # the config of a method for each of its tasks
    **{name: {} for name in ("deterministic", "ensemble", "linear", "constant")},
    "boosting": BOOSTING,
    "sgmcmc": SGMCMC,
    "dark_knowledge": DARK_KNOWLEDGE,
    "swag": SWAG,
    "pca_ess": PCA_ESS,
    "pca_vi": PCA_VI,
}
CONFIGS: dict[tuple[str, str], dict[str, Any]] = {
    **{(name, task): section for name, section in ALIKE.items() for task in ("classification", "regression")},
    ("pretrained", "classification"): {
        "network": CONVNET,
        "weights": weights_of(CONVNET, [1, 8, 8], 3, "categorical"),
    },
    ("pretrained", "regression"): {"network": MLP, "weights": weights_of(MLP, [4], 1, "gaussian_head")},
    ("sgd", "classification"): {"network": CONVNET, "epochs": 2, "snapshots": 2, "batch": 32, "optimiser": ADAM},
    ("sgd", "regression"): {
        "network": MLP,
        "epochs": 3,
        "snapshots": 2,
        "batch": 32,
        "optimiser": ADAM,
        "moments": {"count": 3, "every": 1},
        "variance_floor": 1.0e-3,
    },
    ("bnn", "classification"): {**BNN, "network": CONVNET, "stochastic": "head"},
    ("bnn", "regression"): {**BNN, "noise": "each input"},
    ("dropout", "classification"): {**DROPOUT, "network": CONVNET},
    ("dropout", "regression"): DROPOUT,
    ("tabm", "classification"): {**TABM, "training": WHOLE},
    ("tabm", "regression"): {**TABM, "training": HELD_OUT, "variance_floor": 1.0e-3},
    ("gp", "regression"): {"ard": True, "steps": 12, "lr": 0.1},
    ("svgp", "regression"): {"inducing": 12, "ard": True, "training": LEARN},
    ("swa", "classification"): NORMS,
    ("swa", "regression"): {"batch_norm_rows": None, "batch_norm_batch": 32},
    ("kfac_laplace", "classification"): LAPLACE,
    ("kfac_laplace", "regression"): {**LAPLACE, "predictive": "linearised", "prior_precision": 1.0},
    ("ciber", "classification"): {"form": {"name": "exact", "weights": 2}},
    ("ciber_last", "regression"): {"weights": 3, "radius": "variance", "tail": 0.01},
    ("ciber_second", "regression"): {"weights": 2, "radius": "density", "tail": 0.01},
    ("sngp", "classification"): {**SNGP, "network": CONVNET},
    ("sngp", "regression"): {**SNGP, "noise": "each input"},
    ("gbll", "regression"): GBLL,
    ("ldgbll", "regression"): {**GBLL, **LATENT, "network": LEAKY},
    ("map_blr", "regression"): {"network": MLP, "training": LEARN, "noise_variance": 0.1, "noise": "each input"},
    ("vbpc", "classification"): VBPC,
    ("vbll", "regression"): {"network": MLP, "training": LEARN, "layer": GAUSSIAN},
    ("vbll_bnn", "regression"): {
        "network": MLP,
        "training": LEARN,
        "layer": {**GAUSSIAN, "noise": "each input"},
        "features": FEATURES,
    },
    ("d_vbll", "classification"): {
        **IMAGES,
        "layer": {**GAUSSIAN, "covariance": "lowrank", "rank": 2, "predictive": "sampled", "draws": 3},
    },
    ("d_vbll_bnn", "classification"): {**IMAGES, "layer": {**GAUSSIAN, "covariance": "diagonal"}, "features": FEATURES},
    ("g_vbll", "classification"): {**IMAGES, "layer": GENERATIVE},
    ("g_vbll_bnn", "classification"): {**IMAGES, "layer": {**GENERATIVE, "refit": False}, "features": FEATURES},
    ("ffg_u", "classification"): {**RANDOM_IMAGES, "function_space": True},
    ("ffg_u", "regression"): RANDOM,
    ("fcg_u", "classification"): {**RANDOM_IMAGES, "weights": {"kind": "fcg_u", "rows": 4, "cols": 3}},
    ("fcg_u", "regression"): {**RANDOM, "weights": {"kind": "fcg_u", "rows": 4, "cols": 3}},
    ("ensemble_u", "classification"): {**RANDOM_IMAGES, "weights": MEMBERS},
    ("ensemble_u", "regression"): {**RANDOM, "weights": MEMBERS},
    ("ffg_w", "classification"): {**RANDOM_IMAGES, "weights": MEAN_FIELD},
    ("ffg_w", "regression"): {**RANDOM, "training": WHOLE, "weights": MEAN_FIELD},
    ("fcg_w", "classification"): {
        **RANDOM_IMAGES,
        "weights": {"kind": "fcg_w"},
        "layers": {"trunk*": {"kind": "ffg_w"}},
    },
    ("fcg_w", "regression"): {**RANDOM, "training": WHOLE, "weights": {"kind": "fcg_w"}},
    ("random_coreset", "classification"): {**HEAD, **ON_CORESET, "label_scale": 1.0},
    ("bpc_fkl", "classification"): {**BPC, "inner": INNER, "draws": 2, "sd": 0.01, "shared_noise": False},
    ("bpc_rkl", "classification"): {**BPC, "inner": INNER, "draws": 2, "sd": 0.01, "batch": 8, "weight": 1.0},
    ("bpc_w", "classification"): {**BPC, "inner": INNER, "lr_step": 0.01},
    ("bpc_cd", "classification"): {**BPC, **CONTRASTIVE},
    ("fbpc", "classification"): {**BPC, "inner": {**INNER, "ahead": 2}, "draws": 2, "noise": 0.01},
    ("frepo", "classification"): {"ipc": 2, "network": HEAD["network"], "ridge": 1.0e-6, "coreset": VBPC["coreset"]},
    ("rcig", "classification"): {
        "ipc": 2,
        "network": HEAD["network"],
        "ridge": 5.0e-4,
        "softplus": 60.0,
        "solver": {"name": "cg", "iterations": 2, "tolerance": 1.0e-4},
        "scale_lr": 0.03,
        "network_steps": 2,
        "coreset": VBPC["coreset"] | {"average": 0.9},
    },
    ("coreset_vi", "classification"): {**CLOSED_FORM, **ON_CORESET},
    ("coreset_bma", "classification"): {**CLOSED_FORM, **ON_CORESET, "trunks": 2},
    ("coreset_nn", "classification"): TRAINED_ON_CORESET,
    ("coreset_krr", "classification"): {**TRAINED_ON_CORESET, "ridge": 1.0e-3},
    ("coreset_sgmcmc", "classification"): {
        "network": HEAD["network"],
        "kernel": {"name": "sghmc", "friction": 0.1},
        "step_size": {"name": "constant", "value": 0.01},
        "chains": 2,
        "thinning": {"steps": 12, "burn_in": 4, "every": 2},
        "prior_precision": 1.0,
        "temperature": 0.01,
        "start_sd": None,
        "augmentation": None,
        "diagnostics": {"rows": 8, "max_rhat": 1.05, "min_ess": 100.0},
    },
}


def _same_class(name: str, method: Method) -> bool:
    return METHODS[name].config is method.config


for name, method in METHODS.items():  # a variant has the config of the method with the same class of configs
    for task in method.tasks:
        if (name, task) not in CONFIGS:
            alike = [section for (other, of), section in CONFIGS.items() if of == task and _same_class(other, method)]
            CONFIGS[name, task] = alike[0]

# students that hold several functions
STUDENTS = {
    "heads": {"student": {"name": "heads", "heads": 3, "draws_per_step": 2}},
    "latent": {"student": {"name": "latent", "dimension": 2, "draws": 4, "probe": 20, "draws_per_step": 2}},
}

# changes of the smallest config: the trajectory of a coreset's experts, and the students of several functions
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "experts": {"keep_start": True, "network": {**CONVNET, "norm": "instance"}},
    **STUDENTS,
}

# stage kind -> the method that makes it for other methods; a method with a stage of this kind uses its own stage
UPSTREAM: Mapping[str, str] = {"trajectory": "sgd", "teacher": "sgmcmc", "coreset": "random_coreset"}

# a method that may choose its input -> the stage kinds that it is made from here
CHOSEN: Mapping[str, tuple[Kind, ...]] = {"dark_knowledge": ("teacher",)}


@dataclass(frozen=True)
class Case:
    """One method in one stage on one task."""

    method: str
    kind: str
    task: str
    variant: str = ""

    def __str__(self) -> str:
        return "-".join([self.method, self.kind, self.task, *([self.variant] if self.variant in STUDENTS else [])])

    @property
    def section(self) -> dict[str, Any]:
        return {**CONFIGS[self.method, self.task], **VARIANTS[self.variant]}

    @property
    def stage(self) -> StageSpec:
        return METHODS[self.method].stages[self.kind]  # type: ignore[index]

    @property
    def sources(self) -> tuple[Kind, ...]:
        return CHOSEN.get(self.method, tuple(kind for kind in self.stage.needs if kind in self.stage.required))

    def upstream(self, kind: str) -> "Case":
        own = kind in METHODS[self.method].stages
        variant = "experts" if self.kind == "coreset" and self.stage.needs.get("trajectory") == "all" else ""
        return Case(self.method if own else UPSTREAM[kind], kind, self.task, variant)


CASES = [Case(name, kind, task) for name, method in METHODS.items() for kind in method.stages for task in method.tasks]
CASES += [
    Case("dark_knowledge", "student", task, variant) for task in METHODS["dark_knowledge"].tasks for variant in STUDENTS
]


def config_of(method: str, task: str, **changes: Any) -> Any:
    """Read a method's smallest config with changes."""
    return read(METHODS[method].config, CONFIGS[method, task] | changes, f"methods.{method}")


def fit(
    method: str,
    kind: str,
    data: FitData,
    inputs: Mapping[str, list[State]] = MappingProxyType({}),
    *,
    rng: Seed = Seed(0),
    report: Report | None = None,
    **changes: Any,
) -> State:
    """Fit a method's stage with its smallest config and changes."""
    config, stage = config_of(method, data.task, **changes), METHODS[method].stages[kind]  # type: ignore[index]
    return stage.fit_one(data, inputs, config, rng=rng, report=report or Silent())

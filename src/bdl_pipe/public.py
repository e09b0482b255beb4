"""The public names: the exports of ``import bdl_pipe``, which the docs show.

Like the registry this is a table of names, and no result depends on it. Each name is imported on first use, so that
``import bdl_pipe`` is fast and does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # the same names for type checkers; tests/test_public.py compares
    from . import config as _config
    from . import networks as _networks
    from . import plugins as _plugins
    from .artifacts import State as State
    from .baselines.stored import StoredPosterior as StoredPosterior
    from .baselines.trees import Trees as Trees
    from .checkpoint_files import CheckpointFiles as CheckpointFiles, CheckpointFolder as CheckpointFolder
    from .checkpoints import Checkpointed as Checkpointed
    from .data.catalog import load_dataset as load_dataset, register_source as register_source
    from .data.config import DatasetConfig as DatasetConfig
    from .data.examples import Examples as Examples
    from .data.fitdata import FitData as FitData
    from .data.inspect.images import inspect_images as inspect_images
    from .data.inspect.table import inspect_table as inspect_table
    from .data.raw import Raw as Raw
    from .data.size import Size as Size
    from .display import Display as Display
    from .errors import (
        ArtifactError as ArtifactError,
        ConfigError as ConfigError,
        DataError as DataError,
        Diverged as Diverged,
        UserError as UserError,
        require as require,
    )
    from .estimators.classifier import BayesianClassifier as BayesianClassifier
    from .estimators.compare import compare as compare
    from .estimators.comparison import Comparison as Comparison
    from .estimators.regressor import BayesianRegressor as BayesianRegressor
    from .evaluation import EvaluateConfig as EvaluateConfig, register_ood_score as register_ood_score
    from .joint_predictive import (
        GaussianFunctions as GaussianFunctions,
        Joint as Joint,
        JointCategorical as JointCategorical,
        JointGaussian as JointGaussian,
    )
    from .metrics import register_metric as register_metric
    from .method import (
        Default as Default,
        Inputs as Inputs,
        Method as Method,
        StageSpec as StageSpec,
        Upstream as Upstream,
    )
    from .networks import (
        Architecture as Architecture,
        Network as Network,
        NetworkConfig as NetworkConfig,
        register_network as register_network,
    )
    from .own_model.bayesianise import bayesianise as bayesianise
    from .own_model.posterior import ModulePosterior as ModulePosterior
    from .plugins import PluginError as PluginError
    from .posterior import (
        NetworkDraws as NetworkDraws,
        NetworkSpec as NetworkSpec,
        Posterior as Posterior,
        Predictor as Predictor,
        joint as joint,
    )
    from .predictive import (
        Categorical as Categorical,
        Continuous as Continuous,
        Gaussian as Gaussian,
        Predictive as Predictive,
    )
    from .progress import Report as Report, Silent as Silent
    from .registry import (
        METHODS as METHODS,
        POSTERIORS as POSTERIORS,
        load_predictor as load_predictor,
        posterior_of as posterior_of,
        register_method as register_method,
        register_posterior as register_posterior,
        stored_address as stored_address,
    )
    from .seeds import Seed as Seed
    from .training.fit import fit_epochs as fit_epochs
    from .training.learner import (
        Learner as Learner,
        TrainingConfig as TrainingConfig,
    )
    from .training.posterior import LearnerPosterior as LearnerPosterior, LearnerSpec as LearnerSpec
    from .training.snapshots import snapshots as snapshots
    from .yaml_files import read_yaml as read_yaml

    __version__: str
    build_network = _networks.build
    load_plugins = _plugins.load
    read_config = _config.read

PLACES: Final = {  # name -> its module, and ":name" if it has another name there
    "Architecture": "networks",
    "ArtifactError": "errors",
    "BayesianClassifier": "estimators.classifier",
    "BayesianRegressor": "estimators.regressor",
    "Categorical": "predictive",
    "CheckpointFiles": "checkpoint_files",
    "CheckpointFolder": "checkpoint_files",
    "Checkpointed": "checkpoints",
    "Comparison": "estimators.comparison",
    "ConfigError": "errors",
    "Continuous": "predictive",
    "DataError": "errors",
    "DatasetConfig": "data.config",
    "Default": "method",
    "Display": "display",
    "Diverged": "errors",
    "EvaluateConfig": "evaluation",
    "Examples": "data.examples",
    "FitData": "data.fitdata",
    "Gaussian": "predictive",
    "GaussianFunctions": "joint_predictive",
    "Inputs": "method",
    "Joint": "joint_predictive",
    "JointCategorical": "joint_predictive",
    "JointGaussian": "joint_predictive",
    "Learner": "training.learner",
    "LearnerPosterior": "training.posterior",
    "LearnerSpec": "training.posterior",
    "METHODS": "registry",
    "Method": "method",
    "ModulePosterior": "own_model.posterior",
    "Network": "networks",
    "NetworkConfig": "networks",
    "NetworkDraws": "posterior",
    "NetworkSpec": "posterior",
    "POSTERIORS": "registry",
    "PluginError": "plugins",
    "Posterior": "posterior",
    "Predictive": "predictive",
    "Predictor": "posterior",
    "Raw": "data.raw",
    "Report": "progress",
    "Seed": "seeds",
    "Silent": "progress",
    "Size": "data.size",
    "StageSpec": "method",
    "State": "artifacts",
    "StoredPosterior": "baselines.stored",
    "TrainingConfig": "training.learner",
    "Trees": "baselines.trees",
    "Upstream": "method",
    "UserError": "errors",
    "bayesianise": "own_model.bayesianise",
    "build_network": "networks:build",
    "compare": "estimators.compare",
    "fit_epochs": "training.fit",
    "inspect_images": "data.inspect.images",
    "inspect_table": "data.inspect.table",
    "joint": "posterior",
    "load_dataset": "data.catalog",
    "load_plugins": "plugins:load",
    "load_predictor": "registry",
    "posterior_of": "registry",
    "read_config": "config:read",
    "read_yaml": "yaml_files",
    "register_method": "registry",
    "register_metric": "metrics",
    "register_network": "networks",
    "register_ood_score": "evaluation",
    "register_posterior": "registry",
    "register_source": "data.catalog",
    "require": "errors",
    "snapshots": "training.snapshots",
    "stored_address": "registry",
}


def get(name: str) -> Any:
    """Return the object behind a public name.

    Raises:
        AttributeError: there is no such name.
    """
    if name == "__all__":
        return sorted(PLACES)
    if name == "__version__":
        return _version()
    if name not in PLACES:
        raise AttributeError(f"module {__package__!r} has no attribute {name!r}")
    module, _, attribute = PLACES[name].partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), attribute or name)


def _version() -> str:
    """Return the version of the installed distribution, so that a release changes no file that results depend on."""
    from importlib import metadata

    try:
        return metadata.version("bdl-pipe")
    except metadata.PackageNotFoundError:
        return "0+unknown"

"""The public names, for type checkers and for public.py, which imports each of them on first use."""

from collections.abc import Mapping
from typing import Any, Final

from . import config as _config
from . import networks as _networks
from . import plugins as _plugins
from .adaptive import AdaptiveIntervals as AdaptiveIntervals
from .artifacts import State as State
from .baselines.stored import StoredPosterior as StoredPosterior
from .baselines.trees import Trees as Trees
from .checkpoint_files import CheckpointFiles as CheckpointFiles, CheckpointFolder as CheckpointFolder
from .checkpoints import Checkpointed as Checkpointed
from .coresets.vbpc.influence import row_influence as row_influence
from .data.catalog import load_dataset as load_dataset
from .data.catalog import register_source as register_source
from .data.config import DatasetConfig as DatasetConfig
from .data.corrupt import corrupt as corrupt
from .data.examples import Examples as Examples
from .data.fitdata import FitData as FitData
from .data.inspect.images import inspect_images as inspect_images
from .data.inspect.table import inspect_table as inspect_table
from .data.raw import Raw as Raw
from .data.size import Size as Size
from .display import Display as Display
from .distribution import ClassDistribution as ClassDistribution, NumberDistribution as NumberDistribution
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
from .metrics.quantile_scores import (
    interval_score as interval_score,
    quantile_weighted_crps as quantile_weighted_crps,
)
from .method import Default as Default, Inputs as Inputs, Method as Method, StageSpec as StageSpec, Upstream as Upstream
from .networks import (
    Architecture as Architecture,
    Network as Network,
    NetworkConfig as NetworkConfig,
    register_network as register_network,
)
from .own_model.bayesianise import bayesianise as bayesianise
from .own_model.lora import NextToken as NextToken, lora as lora
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
from .search import sampled_config as sampled_config, validation_nll as validation_nll
from .seeds import Seed as Seed
from .summary import predictions as predictions
from .training.fit import fit_epochs as fit_epochs
from .training.learner import Learner as Learner, TrainingConfig as TrainingConfig
from .training.posterior import LearnerPosterior as LearnerPosterior, LearnerSpec as LearnerSpec
from .training.snapshots import snapshots as snapshots
from .yaml_files import read_yaml as read_yaml

__version__: str
build_network = _networks.build
load_plugins = _plugins.load
read_config = _config.read

PLACES: Final[Mapping[str, str]]

def get(name: str) -> Any: ...

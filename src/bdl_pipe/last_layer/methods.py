"""The methods ``vbll`` (regression), ``d_vbll``, ``g_vbll`` (classes), and ``…_bnn`` with variational features.

A fit starts from random weights or, if the run's input is a trajectory, from the trajectory's last snapshot: it loads
the trunk and, if the layer's weights have a Gaussian posterior, the head as their mean; the head's bias is loaded if
the layer has one (``layer.bias``), as it has for a user's own model. Otherwise the fit has to make up for it.

Training and the validation score of early stopping use the variational posterior. With ``layer.posterior: exact`` the
exact posterior, given the trained trunk and Σ, replaces it after training (appendix C.6).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..artifacts import State, under
from ..config import to_mapping
from ..data.fitdata import FitData
from ..data.size import Section, Size
from ..errors import UserError, require
from ..joint_predictive import GaussianFunctions, Joint
from ..linear_regression import scaled
from ..method import Default, FromModel, Method, ModelFit, Task
from ..networks import NetworkConfig
from ..networks.last_layer import ClassShares, LastLayer, linear
from ..networks.variational import MeanField
from ..posterior_protocols import grad_of_inputs
from ..predictive import Predictive
from ..seeds import Seed
from ..training.learner import FitResult, TrainingConfig, Weights
from ..training.posterior import LearnerPosterior
from .generative import Generative, Refit
from .learner import LastLayerLearner, LastLayerSpec
from .regression import ConjugateRegression, Regression, after_rows, condition
from .settings import FeaturesConfig, GaussianLayer, GenerativeLayer
from .student import StudentRegression

_NOT_FIXED: Final = "for variational features, which are not fixed"
_ROWS: Final = 1000  # training rows in one forward pass of a refit


@dataclass(frozen=True)
class VbllConfig:
    """The section ``methods.vbll`` of params.yaml.

    Attributes:
        network: the network; the layer replaces its head.
        training: the settings of the fit of trunk and layer.
        layer: the last layer.
    """

    network: NetworkConfig
    training: TrainingConfig
    layer: GaussianLayer


@dataclass(frozen=True)
class DiscriminativeConfig(VbllConfig):
    """The section ``methods.d_vbll`` of params.yaml."""

    def __post_init__(self) -> None:
        _require_variational(self.layer, "for a discriminative layer, which is not conjugate")
        point = not self.layer.conjugate
        require(point, "layer.noise_posterior", "must be point: classes have no noise of targets", "conjugate")


@dataclass(frozen=True)
class VbllBnnConfig(VbllConfig):
    """The sections ``methods.vbll_bnn`` and ``methods.d_vbll_bnn``, with the settings of variational features."""

    features: FeaturesConfig

    def __post_init__(self) -> None:
        _require_variational(self.layer, _NOT_FIXED)


@dataclass(frozen=True)
class GenerativeConfig:
    """The section ``methods.g_vbll``; see :class:`VbllConfig`."""

    network: NetworkConfig
    training: TrainingConfig
    layer: GenerativeLayer


@dataclass(frozen=True)
class GenerativeBnnConfig(GenerativeConfig):
    """The section ``methods.g_vbll_bnn`` of params.yaml."""

    features: FeaturesConfig

    def __post_init__(self) -> None:
        _require_variational(self.layer, _NOT_FIXED)


def _require_variational(layer: GaussianLayer | GenerativeLayer, where: str) -> None:
    require(layer.posterior == "variational", "layer.posterior", f"must be variational {where}", layer.posterior)


Config = VbllConfig | GenerativeConfig


@final
class LastLayerPosterior(LearnerPosterior[LastLayerLearner]):
    """A fitted trunk and last layer; a generative layer may have refitted densities.

    In a prediction ``rng`` draws the trunks and, if the layer's rule is "sampled", the logits.
    """

    key, spec_class = "last_layer", LastLayerSpec

    @grad_of_inputs
    def predict(self, inputs: Tensor, *, rng: Seed, class_shares: ClassShares | None = None) -> Predictive:
        """Predict; ``class_shares``, of a generative layer, replace the training rows' shares of the classes.

        See :meth:`LastLayerLearner.predict`. The refitted densities keep the training rows' shares.
        """
        with self.lent() as learner:
            return learner.predict(inputs, rng=rng, class_shares=class_shares)

    @torch.no_grad()
    def last_layer(self, inputs: Tensor, *, rng: Seed) -> LastLayer:
        """Return the features' mean over draws, and logits except for a layer of class densities, which has none."""
        with self.lent() as learner:
            draws = learner.spec.features.draws if learner.spec.features else 1
            features = torch.stack([learner.features(inputs, draw, rng) for draw in range(draws)]).mean(0)
            if learner.spec.layer.name != "gaussian":
                return LastLayer(features)
            layer = linear(features, learner.layer.mean)
            return layer if draws == 1 else LastLayer(features, layer.logits, layer.origin)

    @grad_of_inputs
    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed) -> GaussianFunctions:
        """Return :meth:`LastLayerLearner.functions` of transformed inputs."""
        with self.lent() as learner:
            return learner.functions(inputs, rng=rng)

    @torch.no_grad()
    def joint(self, inputs: Float[Tensor, "group row ..."], *, places: Tensor | None, draws: int, rng: Seed) -> Joint:
        """Return :meth:`LastLayerLearner.joint` of transformed inputs."""
        with self.lent() as learner:
            return learner.joint(inputs, places=places, draws=draws, rng=rng)

    @torch.no_grad()
    def learnt(self, inputs: Tensor, targets: Tensor, *, keep: float) -> State:
        """Return the state given further rows; see :class:`~bdl_pipe.posterior_protocols.OnlinePosterior`.

        q(w) is the prior of the further rows (Brunzema et al. 2024, section 3.2). A generative layer's class means have
        Gaussian posteriors given Σ; its refitted densities stay as they are.

        Raises:
            UserError: features are variational, the layer is discriminative, has a posterior over its noise or blocks,
                or there are several targets.
        """
        with self.lent() as learner:
            if learner.spec.features is not None:
                raise UserError("learning further rows needs point features, got variational features")
            features, state = learner.features(inputs, 0, Seed(0)), dict(learner.state_dict())
            if type(learner.layer) is Generative:
                learned = learner.layer.learnt(features, targets, keep)
                spec = learner.spec
            elif type(learner.layer) is Regression and learner.spec.outputs == 1:
                learned = after_rows(
                    learner.layer, learner.exact, features, targets, learner.log_noise_of(features), keep
                )
                spec = replace(learner.spec, layer=replace(learner.spec.layer, posterior="exact"))
            else:
                rule = "a layer for one target or a generative layer with a point noise"
                raise UserError(f"learning further rows needs {rule}, got {type(learner.layer).__name__}")
        return State(state | learned, self.state().config | {"spec": to_mapping(spec)})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "LastLayerPosterior":
        """Rebuild the posterior; a layer that has learnt further rows keeps its float64."""
        posterior = super().from_state(state, device)
        exact = posterior.learner.exact
        if exact is not None and state.tensors["exact.mean"].dtype == torch.float64:
            exact.double().load_state_dict(under("exact.", state.tensors))
        return posterior

    @classmethod
    def spec(cls, config: Config, data: FitData) -> LastLayerSpec:
        features = getattr(config, "features", None)
        return LastLayerSpec(config.network, data.input_shape, data.outputs, data.task, config.layer, features)

    @classmethod
    def build(cls, spec: LastLayerSpec, data: FitData, rng: Seed, start: Weights | None) -> LastLayerLearner:
        """Return a new learner, or with the trunk of ``start`` and its head as the mean of Gaussian weights."""
        counts, labels, weights = None, data.train.targets, data.train.weights
        if data.task == "classification":
            counts = torch.from_numpy(np.bincount(labels, weights, minlength=data.outputs)).to(torch.float32)
        learner = spec.build(rng, counts, len(labels) if weights is None else weights.sum())
        if start is not None:
            trunk = learner.trunk.module if isinstance(learner.trunk, MeanField) else learner.trunk
            trunk.load_state_dict({k: v for k, v in start.items() if k.startswith("trunk.")})
            with torch.no_grad():
                if learner.linear is not None:  # the identity: the head was trained on the trunk
                    nn.init.eye_(learner.linear.module.get_parameter("weight"))
                if not isinstance(learner.layer, Generative):
                    head = [start["head.weight"], *([start["head.bias"][:, None]] if spec.bias else [])]
                    learner.layer.mean.copy_(torch.cat(head, 1))
        return learner

    @classmethod
    def skeleton(cls, spec: LastLayerSpec) -> LastLayerLearner:
        learner = spec.build(Seed(0))
        k, h = spec.outputs, learner.layer.in_features
        if spec.refits:
            learner.refit = Refit.skeleton(
                mean=(k, h), variance=(k, h), class_log_probs=(k,), feature_prior_variance=(h,)
            )
        if spec.layer.posterior == "exact" and isinstance(learner.layer, Regression):
            learner.exact = ConjugateRegression.skeleton(
                mean=(k, h), basis=(h, h), variance=(k, h), mixing=(k, k), noise_variance=(k,)
            )
        return learner

    @staticmethod
    def finish(spec: LastLayerSpec, fitted: FitResult, data: FitData, rng: Seed) -> dict[str, Tensor]:
        """Compute the exact posterior and refit a generative layer's densities if the config sets them."""
        state, exact = dict(fitted.state), spec.layer.posterior == "exact"
        if not (exact or spec.refits):
            return state
        learner = spec.build(Seed(0)).to(data.device).eval()
        learner.load_state_dict(state)
        layer, computed = learner.layer, dict[str, nn.Module]()
        if exact:
            rows = _training_features(learner, data, rng.fold("exact"))
            if isinstance(layer, Regression):
                computed["exact"] = condition(layer, rows)
            elif isinstance(layer, Generative | StudentRegression):
                of_rows = data.train.weights
                total = () if isinstance(layer, Generative) or of_rows is None else (float(of_rows.sum()),)
                layer.condition(rows, *total)
                computed["layer"] = layer
        if spec.refits and isinstance(layer, Generative):
            computed["refit"] = layer.refit_noise(_training_features(learner, data, rng.fold("refit")))
        for part, module in computed.items():
            state |= {f"{part}.{name}": tensor.cpu() for name, tensor in module.state_dict().items()}
        return state


@torch.no_grad()
def _training_features(learner: LastLayerLearner, data: FitData, rng: Seed) -> Iterator[tuple[Tensor, ...]]:
    """Yield :meth:`LastLayerLearner.row` of the training rows; variational features have one draw for each batch.

    Targets are scaled by the rows' weights, and labels are followed by them.
    """
    weights = data.weights("train", data.device)
    for batch, (x, y) in enumerate(data.rows("train", data.device).batches(_ROWS)):
        features, targets = learner.row(x, y, batch, rng)
        if weights is None:
            yield features, targets
        else:
            of_rows = weights[batch * _ROWS :][: len(x)].to(features)
            classes = data.task == "classification"
            yield (features, targets, of_rows) if classes else scaled(features, targets, None, of_rows)


def _default(size: Size) -> Section:
    return {"network": size.network, "training": size.training()}


_LAYER: Final = {"prior_variance": 1.0, "wishart_dof": 1.0, "wishart_scale": 1.0, "kl_weight": 1.0}


def _method(
    name: str,
    config: type,
    tasks: tuple[Task, ...],
    default: Default | None = None,
    *,
    online: bool = False,
    few_rows: Section | None = None,
    **layer: object,
) -> Method:
    search = {
        "training.optimiser.lr": (1e-4, 3e-2, "log"),
        "layer.prior_variance": (1e-2, 1e2, "log"),
        "layer.wishart_scale": (1e-3, 1e1, "log"),
    }

    def from_model(fit: ModelFit) -> Section:
        return {
            "network": fit.network,
            "training": fit.training(1e-3),
            "layer": {**_LAYER, **layer, "wishart_scale": 1.0}
            | ({"bias": True} if issubclass(config, VbllConfig) else {}),
        }

    return Method(
        name=name,
        family="last_layer",
        bayesian=True,
        config=config,
        tasks=tasks,
        stages={"student": LastLayerPosterior.stage()},
        search=search,  # type: ignore[arg-type]
        settings={"layer": {**_LAYER, **layer}} if default else {},
        few_rows=few_rows or {},
        online=tasks if online else (),
        program=default is not None,
        weighs_rows=True,
        default=default,
        from_model=FromModel(from_model) if default else None,
    )


_DENSE: Final[Section] = {"covariance": "dense", "rank": None, "wishart_scale": 20.0}
_REGRESSION: Final = Default(1.6, override=lambda s: {**_default(s), "layer": {"wishart_scale": 1.0, **s.noise_of}})
_FEW_ROWS: Final[Section] = {
    "network": {"name": "mlp", "hidden": [64, 64], "activation": "elu", "frequencies": []},
    "training": {
        "epochs": 500,
        "optimiser": {"lr": 3e-3, "weight_decay": 1e-4},
        "early_stopping": None,
        "noise": "learned",
    },
    "layer": {"prior_variance": 10.0, "wishart_scale": 1e-3, "posterior": "exact"},
}
_SEARCHING: Final[Section] = {"override": _FEW_ROWS, "region": 0.1}  # beyond it the corners of the cube are uncertain
VBLL = _method("vbll", VbllConfig, ("regression",), _REGRESSION, online=True, few_rows=_SEARCHING, **_DENSE)
VBLL_BNN = _method("vbll_bnn", VbllBnnConfig, ("regression",))
_DIAGONAL: Final[Section] = {"covariance": "diagonal", "rank": None, "predictive": "quadrature"}
D_VBLL = _method("d_vbll", DiscriminativeConfig, ("classification",), Default(1.6, override=_default), **_DIAGONAL)
D_VBLL_BNN = _method("d_vbll_bnn", VbllBnnConfig, ("classification",))
_DENSITIES: Final[Section] = {"dirichlet": 1.0, "wishart_dof": 128.0, "refit": True}
_GENERATIVE: Final = Default(2.0, override=_default)
G_VBLL = _method("g_vbll", GenerativeConfig, ("classification",), _GENERATIVE, online=True, **_DENSITIES)
G_VBLL_BNN = _method("g_vbll_bnn", GenerativeBnnConfig, ("classification",))

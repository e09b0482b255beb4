"""The registry: the modules of the methods and posteriors. A module is imported when its entry is first used.

An entry is ``name: "module:attribute"``, with the module's name below ``bdl_pipe``. A result depends on the modules
that its own entry imports and on no other entry, so that adding a method leaves all results up to date.
"""

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from . import plugins
from .errors import ArtifactError, short
from .plugins import PluginError, Registered

if TYPE_CHECKING:  # they import torch, which is not needed to list the names
    import torch

    from .artifacts import State
    from .method import Method
    from .posterior import Posterior, Predictor
    from .seeds import Seed

T = TypeVar("T")
RECALIBRATION: Final = "recalibration"  # prefix of a student artifact's states: <RECALIBRATION>-<fit>


class Lazy(Registered[T], Generic[T]):
    """A table whose values are imported on first use."""

    def __init__(self, what: str, places: Mapping[str, str]) -> None:
        """Create a table from ``places``: name -> ``module:attribute``."""
        super().__init__(what, {})
        self._places = dict(places)

    def __getitem__(self, name: str) -> T:
        if name not in self._places:
            return super().__getitem__(name)
        module, _, attribute = self._places[name].partition(":")
        value: T = getattr(importlib.import_module(f".{module}", __package__), attribute)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._places or super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._places
        yield from super().__iter__()

    def __len__(self) -> int:
        return len(self._places) + super().__len__()

    def module(self, name: str) -> str:
        """Return the full name of an entry's module, without importing it."""
        return self.module_of(name) or f"{__package__}.{self._places[name].partition(':')[0]}"


# Comparisons offer methods in this order (``offers``): first cheap methods on a trajectory, then methods on the data.
METHODS: Final[Lazy["Method"]] = Lazy(
    "method",
    {
        "sgd": "trajectory.sgd:SGD",
        "pretrained": "trajectory.pretrained:PRETRAINED",
        "deterministic": "baselines.deterministic:DETERMINISTIC",
        "ensemble": "baselines.ensemble:ENSEMBLE",
        "swa": "trajectory.swa:SWA",
        "swag": "trajectory.swag:SWAG",
        "multi_swag": "trajectory.swag:MULTI_SWAG",
        "pca_ess": "trajectory.pca_ess:PCA_ESS",
        "pca_vi": "trajectory.pca_vi:PCA_VI",
        "kfac_laplace": "trajectory.laplace:KFAC_LAPLACE",
        "ciber": "collapsed.classes:CIBER",
        "ciber_last": "collapsed.regression:CIBER_LAST",
        "ciber_second": "collapsed.second_to_last:CIBER_SECOND",
        "vbll": "last_layer.methods:VBLL",
        "vbll_bnn": "last_layer.methods:VBLL_BNN",
        "d_vbll": "last_layer.methods:D_VBLL",
        "d_vbll_bnn": "last_layer.methods:D_VBLL_BNN",
        "g_vbll": "last_layer.methods:G_VBLL",
        "g_vbll_bnn": "last_layer.methods:G_VBLL_BNN",
        "sngp": "baselines.sngp:SNGP",
        "gbll": "baselines.gbll:GBLL",
        "ldgbll": "baselines.gbll:LDGBLL",
        "map_blr": "baselines.map_blr:MAP_BLR",
        "pbp": "baselines.pbp:PBP",
        "gp": "baselines.gp:GP",
        "svgp": "baselines.sparse_gp:SVGP",
        "sgmcmc": "sgmcmc.method:SGMCMC",
        "dark_knowledge": "dark_knowledge.distil:DARK_KNOWLEDGE",
        "vbpc": "coresets.vbpc.method:VBPC",
        "vbpc_regression": "coresets.vbpc.regression:VBPC_REGRESSION",
        "random_coreset": "coresets.random_selection:RANDOM_CORESET",
        "bpc_fkl": "coresets.bpc.methods:BPC_FKL",
        "bpc_rkl": "coresets.bpc.methods:BPC_RKL",
        "bpc_w": "coresets.bpc.methods:BPC_W",
        "bpc_cd": "coresets.bpc.methods:BPC_CD",
        "fbpc": "coresets.bpc.methods:FBPC",
        "frepo": "coresets.frepo:FREPO",
        "rcig": "coresets.rcig.method:RCIG",
        "coreset_vi": "coresets.protocols.closed_form:CORESET_VI",
        "coreset_bma": "coresets.protocols.closed_form:CORESET_BMA",
        "coreset_nn": "coresets.protocols.network:CORESET_NN",
        "coreset_krr": "coresets.protocols.network:CORESET_KRR",
        "coreset_sgmcmc": "coresets.protocols.chains:CORESET_SGMCMC",
        "ffg_u": "inducing.methods:FFG_U",
        "fcg_u": "inducing.methods:FCG_U",
        "ensemble_u": "inducing.methods:ENSEMBLE_U",
        "ffg_w": "inducing.methods:FFG_W",
        "fcg_w": "inducing.methods:FCG_W",
        "matrix_normal_w": "inducing.methods:MATRIX_NORMAL_W",
        "k_tied_w": "inducing.methods:K_TIED_W",
        "rank1_w": "inducing.methods:RANK1_W",
        "bnn": "baselines.bnn:BNN",
        "dropout": "baselines.dropout:DROPOUT",
        "tabm": "baselines.tabm:TABM",
        "boosting": "baselines.boosting:BOOSTING",
        "stacked": "baselines.stacked:STACKED",
        "linear": "baselines.linear_model:LINEAR",
        "constant": "baselines.constant:CONSTANT",
    },
)

POSTERIORS: Final[Lazy[type["Posterior"]]] = Lazy(
    "posterior",
    {
        "network_draws": "posterior:NetworkDraws",
        "vbpc": "coresets.vbpc.posterior:VbpcPosterior",
        "vbpc_regression": "coresets.vbpc.regression_posterior:VbpcRegressionPosterior",
        "vbpc_bma": "coresets.protocols.closed_form:TrunkMixture",
        "last_layer": "last_layer.methods:LastLayerPosterior",
        "gp": "baselines.gp:GpPosterior",
        "boosting": "baselines.boosting:BoostingPosterior",
        "stacked": "baselines.stacked:StackedPosterior",
        "linear_regression": "baselines.linear_model:LinearRegressionPosterior",
        "logistic_regression": "baselines.linear_model:LogisticRegressionPosterior",
        "constant": "baselines.constant:ConstantPosterior",
        "svgp": "baselines.sparse_gp:SvgpPosterior",
        "bnn": "baselines.bnn:BnnPosterior",
        "dropout": "baselines.dropout:DropoutPosterior",
        "sngp": "baselines.sngp:SngpPosterior",
        "exact_layer": "baselines.exact_layer:ExactLayerPosterior",
        "pbp": "baselines.pbp:PbpPosterior",
        "random_weights": "inducing.methods:RandomWeightsPosterior",
        "linearised_draws": "trajectory.linearised:LinearisedDraws",
        "linearised_laplace": "trajectory.linearised:LinearisedLaplace",
        "student_functions": "dark_knowledge.functions:StudentFunctions",
        "ciber": "collapsed.classes:CiberPosterior",
        "ciber_last": "collapsed.regression:CiberLastPosterior",
        "ciber_second": "collapsed.second_to_last:CiberSecondPosterior",
        "module": "own_model.posterior:ModulePosterior",
    },
)


def register_method(method: "Method") -> None:
    """Register a method under its own name.

    Raises:
        PluginError: ``method`` is not a Method, or its name is taken.
    """
    from .method import Method

    if not isinstance(method, Method):
        raise PluginError(f"register_method takes a Method, got {short(method)}")
    METHODS.add(method.name, method, method.config.__module__)


def register_posterior(posterior: type["Posterior"]) -> None:
    """Register a class of posteriors under its ``key``, which must equal ``state().config["posterior"]``.

    Raises:
        PluginError: the class lacks ``key``, ``predict``, ``state`` or ``from_state``, or its key is taken.
    """
    lacks = [name for name in ("key", "predict", "state", "from_state") if not hasattr(posterior, name)]
    if lacks:
        name = getattr(posterior, "__name__", short(posterior))
        raise PluginError(f"the posterior {name} must have {' and '.join(lacks)}")
    POSTERIORS.add(posterior.key, posterior, posterior.__module__)  # type: ignore[attr-defined]


def stored_address(path: Path, split: int = 0, seed: int = 0) -> "Seed":
    """Return the seed address at which a student artifact's predictions were scored.

    Raises:
        ArtifactError: the folder is not a complete student artifact, or lacks its run or seed.
    """
    from . import artifacts
    from .posterior import prediction_address

    about = artifacts.load(path, "student", verify=False).manifest["about"]
    if not {"seed", "run"} <= about.keys():
        raise ArtifactError(f"{path}: must record its seed and its run; make it again")
    return prediction_address(about["seed"], about["run"], split, seed)


def load_predictor(path: Path | str, split: int = 0, seed: int = 0, device: str = "cpu") -> "Predictor":
    """Load the fitted posterior of a student artifact, which predicts raw inputs in the targets' original units.

    Raises:
        ArtifactError: the folder is not a complete student artifact, has no such split or seed, or needs a plugin that
            cannot be imported here.
    """
    from . import artifacts
    from .data.transform import Transform
    from .posterior import Predictor
    from .recalibration import Recalibration

    path = Path(path)
    artifact = artifacts.load(path, "student")
    name = f"{split}-{seed}"
    stored = [n for n in artifact.names() if not n.startswith(("transform-", f"{RECALIBRATION}-"))]
    if name not in stored:
        raise ArtifactError(f"{path}: has no seed {seed} of split {split} (it has <split>-<seed> {', '.join(stored)})")
    load_plugins_of(path, artifact.manifest["about"])
    transform = Transform.from_state(artifact.state(f"transform-{split}"))
    classes = tuple(map(str, artifact.json("schema.json").get("classes") or ()))
    of_rows = f"{RECALIBRATION}-{name}"
    recalibration = Recalibration.from_state(artifact.state(of_rows)) if of_rows in artifact.names() else None
    return Predictor(posterior_of(artifact.state(name), device), transform, classes, recalibration)


def load_plugins_of(path: Path, about: Mapping[str, object]) -> None:
    """Import the plugins that an artifact was made with. A plugin that is loaded from another path is accepted.

    Args:
        path: the artifact's path, for errors.
        about: the section ``about`` of the artifact's manifest.

    Raises:
        ArtifactError: a plugin cannot be imported.
    """
    names = about.get("plugins", ())
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ArtifactError(f"{path}: plugins must be a list of names, got {short(names)}; make it again")
    for name in names:
        if any(Path(plugin.name).name == Path(name).name for plugin in plugins.loaded()):
            continue
        try:
            plugins.load([name])
        except PluginError as error:
            raise ArtifactError(f"{path}: was made with the plugin {name}: {error}") from None


def posterior_of(state: "State", device: "torch.device | str" = "cpu") -> "Posterior":
    """Rebuild a posterior from its ``state()``, on ``device``.

    Raises:
        ArtifactError: the state's posterior is not registered.
    """
    key = str(state.config.get("posterior"))
    if key not in POSTERIORS:
        raise ArtifactError(f"posterior must be one of {', '.join(POSTERIORS)}, got {key!r}")
    return POSTERIORS[key].from_state(state, device)

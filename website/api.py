"""The pages ``docs/reference/api-*.md``: the public names with their signatures, from the docstrings.

The pages hold directives of mkdocstrings alone; the site's build reads signatures and docstrings from ``src/``.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bdl_pipe.public import PLACES

FOLDER: Final = Path("docs/reference")


@dataclass(frozen=True)
class Group:
    """A page of names that belong together.

    Attributes:
        names: public names, in the order of the page.
        modules: modules that are shown whole.
    """

    title: str
    about: str
    names: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


GROUPS: Final = {
    "estimators": Group(
        "Estimators",
        "[Use it with scikit-learn](../estimators.md) has examples.",
        (
            *("BayesianRegressor", "BayesianClassifier", "NumberDistribution", "ClassDistribution", "compare"),
            "Comparison",
        ),
        ("bdl_pipe.estimators.base",),
    ),
    "own-model": Group(
        "A posterior of your own model",
        "[Your own model](../your-own-model.md) has examples.",
        ("bayesianise", "ModulePosterior", "lora", "NextToken"),
    ),
    "answers": Group(
        "Posteriors and predictives",
        "What a fitted method is, and what it answers.",
        (
            *("Posterior", "NetworkDraws", "StoredPosterior", "Trees", "Predictive", "Categorical", "Continuous"),
            *("Gaussian", "joint", "Joint", "JointCategorical", "JointGaussian", "GaussianFunctions"),
            *("load_predictor", "Predictor", "predictions", "posterior_of", "stored_address", "interval_score"),
            "quantile_weighted_crps",
        ),
    ),
    "methods": Group(
        "Methods and plugins",
        "What a method of your own is made from. [Your method](../your-method.md) has an example.",
        (
            *("Method", "StageSpec", "Default", "Upstream", "Size", "Inputs", "FitData", "Examples", "Seed", "Report"),
            *("Silent", "State", "snapshots", "METHODS", "POSTERIORS", "register_method", "register_network"),
            *("register_source", "register_ood_score", "register_metric", "register_posterior", "load_plugins"),
        ),
    ),
    "training": Group(
        "Networks and training",
        "[Your own network](../your-own-model.md#a-new-architecture) has examples.",
        (
            *("Network", "NetworkConfig", "NetworkSpec", "Architecture", "build_network", "Learner", "LearnerSpec"),
            *("LearnerPosterior", "TrainingConfig", "fit_epochs", "Checkpointed", "CheckpointFiles"),
            *("CheckpointFolder", "Display", "sampled_config", "validation_nll"),
        ),
    ),
    "data": Group(
        "Data, configs and errors",
        "What reads files and settings, and what is raised.",
        (
            *("inspect_table", "inspect_images", "corrupt", "Raw", "DatasetConfig", "EvaluateConfig", "read_config"),
            *("read_yaml", "require", "UserError", "ConfigError", "DataError", "ArtifactError", "PluginError"),
            "Diverged",
        ),
    ),
    "parts": Group(
        "Parts for your own training loop",
        "Layers, integrals and closed forms that need no pipeline. The families' pages have examples.",
        ("row_influence",),
        (
            "bdl_pipe.last_layer.regression",
            "bdl_pipe.last_layer.discriminative",
            "bdl_pipe.last_layer.generative",
            "bdl_pipe.last_layer.student",
            "bdl_pipe.collapsed.integrals",
            "bdl_pipe.coresets.vbpc.closed_form",
            "bdl_pipe.gumbel_maximum",
        ),
    ),
    "scores": Group(
        "Scores, comparisons and figures",
        "What is computed from stored predictions. [Metrics](../metrics.md) explains them.",
        (),
        (
            "bdl_pipe.scores",
            "bdl_pipe.metrics.table",
            "bdl_pipe.metrics.calibration",
            "bdl_pipe.metrics.conformal",
            "bdl_pipe.metrics.selective",
            "bdl_pipe.metrics.standings",
            "bdl_pipe.metrics.comparison",
            "bdl_report.verdict",
            "bdl_pipe.figures",
            "bdl_pipe.drawing",
        ),
    ),
}


def pages() -> dict[Path, str]:
    """Return the pages by their path; a public name of no group stands on the page ``data``."""
    others = tuple(name for name in PLACES if not any(name in group.names for group in GROUPS.values()))
    groups = {**GROUPS, "data": replace(GROUPS["data"], names=(*GROUPS["data"].names, *others))}
    return {FOLDER / f"api-{name}.md": page(group) for name, group in groups.items()}


def page(group: Group) -> str:
    """Return the page of a group."""
    shown = [f"::: bdl_pipe.{module}.{name}" for name in group.names for module, name in [place(name)]]
    shown += [f"::: {module}\n    options:\n      show_root_full_path: true" for module in group.modules]
    return f"# {group.title}\n\n{group.about}\n\n" + "\n\n".join(shown) + "\n"


def place(name: str) -> tuple[str, str]:
    """Return the module below ``bdl_pipe`` of a public name, and its name there."""
    module, _, other = PLACES[name].partition(":")
    return module, other or name

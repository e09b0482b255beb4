"""The generated parts of ``docs/methods/*.md``: a method's inputs and results, its numbers, the keys of its section.

Blocks are called ``facts METHOD``, ``numbers METHOD`` and ``keys METHOD``; ``programs`` lists the methods that export.
"""

from pathlib import Path
from typing import Final

from bdl_pipe import config
from bdl_pipe.method import Method
from bdl_pipe.registry import METHODS
from bdl_pipe.yaml_files import read_yaml

from . import stored
from .blocks import table
from .keys import in_yaml, keys
from .parameters import key_table

SECTIONS: Final = "../reference/params-keys.md"
ROOT: Final = Path(__file__).parents[1]
PICTURES: Final = ROOT / "docs/methods/images"
SETS: Final = {"fashion_mnist": "Fashion-MNIST", "boston": "Boston housing"}
SHOWN: Final = {
    "fashion_mnist": ("Accuracy %", "NLL", "ECE %", "Corrupted acc. %", "AUROC mnist5k"),
    "boston": ("RMSE", "NLL", "KL to posterior"),
}
COSTS: Final = ("Parameters", "Fit", "Per 1,000")
BESIDE: Final = ("deterministic", "ensemble")
PROTOCOLS: Final = ("coreset_vi", "coreset_nn", "coreset_krr", "coreset_sgmcmc")
NEEDS: Final = {
    "trajectory": "a trajectory of SGD",
    "teacher": "Markov chains",
    "coreset": "a coreset",
    "student": "another run's posterior",
}


def blocks() -> dict[str, str]:
    """Return the blocks of all methods of the library by name."""
    programs = [f"`{method.name}`" for method in METHODS.values() if method.program]
    blocks_by_name = {"programs": f"Methods with a program: {', '.join(programs[:-1])} and {programs[-1]}."}
    for name in METHODS:
        method = METHODS[name]
        if method.config.__module__.startswith("bdl_pipe."):
            blocks_by_name[f"facts {name}"] = facts(name, method)
            blocks_by_name[f"numbers {name}"] = numbers(name)
            blocks_by_name[f"keys {name}"] = key_table(method.config, SECTIONS)
            blocks_by_name[f"values {name}"] = values(name)
            blocks_by_name[f"picture {name}"] = picture(name, method)
    return blocks_by_name


def picture(name: str, method: Method) -> str:
    """Return a method's picture with its caption; empty if it has none."""
    if not (PICTURES / f"{name}.png").exists():
        return ""
    if "coreset" in method.stages and "classification" in method.tasks:
        caption = "The learned coreset of Fashion-MNIST with one image for each class."
        return f"![The coreset of {name}](images/{name}.png)\n\n*{caption}*"
    curve = "100 noisy rows of sin 4x (dotted) with a gap: the mean, and the intervals of 50 and 90 %"
    moons = "two moons: the probability of the blue class"
    shown = {
        ("classification", "regression"): f"Left, {curve}. Right, {moons}.",
        ("classification",): f"{moons.capitalize()}.",
    }
    caption = shown.get(tuple(sorted(method.tasks)), f"{curve}.")
    caption += f" Method: `{name}` with the estimators' defaults."
    return f"![The predictive of {name}](images/{name}.png)\n\n*{caption}*"


def facts(name: str, method: Method) -> str:
    """Return a table of a method's inputs, results and names."""
    estimators = {"regression": "BayesianRegressor", "classification": "BayesianClassifier"}
    rows = [["task", ", ".join(sorted(method.tasks))]]
    for kind, stage in method.stages.items():
        sources = [NEEDS[of] for of in stage.needs if stage.needs[of] != "earlier"]
        inputs = " or ".join(sources) if sources else "the data alone"
        if sources and stage.input_optional:
            inputs = f"the data alone, or also {inputs}"
        rows.append([f"stage `{kind}`", f"uses {inputs}"])
    if "student" in method.stages:
        rows.append(["estimator", ", ".join(f'`{estimators[task]}("{name}")`' for task in sorted(method.tasks))])
    if method.search:
        rows.append(["searched by `tune`", ", ".join(f"`{key}`" for key in method.search)])
    rows.append(
        [
            "code",
            f"`src/{METHODS.module(name).replace('.', '/')}.py`".replace(
                "/coresets/bpc/config", "/coresets/bpc/methods"
            ),
        ]
    )
    return table([f"`{name}`", " "], rows)


def numbers(name: str) -> str:
    """Return the tables of a method's stored figures, beside one network and an ensemble of them."""
    parts = [_default_run(name, dataset) for dataset in SETS]
    parts += [_coresets(name), _shipped(name)]
    return "\n\n".join(part for part in parts if part) or "No stored run has this method."


def _default_run(name: str, dataset: str) -> str:
    runs_of_method = [run for run in stored.runs() if run.dataset == dataset and run.method == name]
    if not runs_of_method:
        return ""
    beside = [run for run in stored.runs() if run.dataset == dataset and run.method in BESIDE and run.method != name]
    columns = [*SHOWN[dataset], *COSTS]
    rows = [
        [f"`{run.method}`" + f", {run.setting}" * (run.setting != "small"), *(run.cell(column) for column in columns)]
        for run in [*runs_of_method, *beside]
    ]
    head = f"{SETS[dataset]}, [the comparison](../results.md#the-comparison):"
    return head + "\n\n" + table(["", *columns], rows, right=tuple(range(1, len(columns) + 1)))


def _coresets(name: str) -> str:
    """Return a table of the coresets that a method makes, under each protocol, with random images as the floor."""
    rows = [row for row in stored.coreset_scores() if row["dataset"] == "fashion_mnist"]
    coresets = dict.fromkeys(row["coreset"] for row in rows if row["method"] == name and row["coreset"].count("-") == 2)
    if not coresets:
        return ""
    cells = []
    for coreset in coresets:
        of = {(row["protocol"], row["metric"]): row for row in rows if row["coreset"] == coreset}
        ipc, seconds = (next(row[key] for row in rows if row["coreset"] == coreset) for key in ("ipc", "seconds"))
        scores = []
        for protocol in PROTOCOLS:
            accuracy, nll = of.get((protocol, "accuracy")), of.get((protocol, "nll"))
            both = accuracy is not None and nll is not None
            scores.append(f"{100 * float(accuracy['mean']):.1f} %, {float(nll['mean']):.3f}" if both else "—")  # type: ignore[index]
        cells.append([f"`{coreset.partition('-')[2]}`", ipc, f"{float(seconds):,.3g} s", *scores])
    head = "Fashion-MNIST, accuracy and NLL of [each coreset under each protocol](../../results/coresets/README.md):"
    columns = ["coreset", "images a class", "distilled in", *(f"`{protocol}`" for protocol in PROTOCOLS)]
    return head + "\n\n" + table(columns, cells, right=tuple(range(1, len(columns))))


def _shipped(name: str) -> str:
    tables_of_method = stored.on_shipped_tables(name)
    if tables_of_method is None:
        return ""
    tables, best, gain = tables_of_method
    return (
        f"On {tables} [tables that Python packages ship](../../results/your_data/README.md), run with the "
        f"hyperparameters that `add` writes, its NLL is {gain:.2f} nats below the NLL of `constant` (median). "
        f"It has the lowest NLL of all methods on {best or 'none'} of them."
    )


def values(name: str) -> str:
    """Return the values that a method's keys have in ``params.yaml``, without sections within its own."""
    settings = read_yaml(ROOT / "params.yaml")["methods"].get(name, METHODS[name].settings)
    names = [key.name for key in keys(METHODS[name].config)]
    plain = [
        f"`{key}: {in_yaml(settings[key])}`" for key in names if key in settings and not isinstance(settings[key], dict)
    ]
    assert not dict(settings).keys() - set(names), config.nearest(name, names)
    return f"Values in `params.yaml`: {', '.join(plain)}." if plain else ""

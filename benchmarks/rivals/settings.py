"""The rivals of results/your_data/rivals.csv: the method of each, its plugin and its default hyperparameters.

Defaults are the packages' own, where they have them: LightGBM's at the usual rate of 0.05 with 0.8 of rows and columns,
NGBoost's 500 rounds at 0.01, CatBoost's depth 6, pytabkit's RealMLP-TD and TabM-D.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

HERE: Final = Path(__file__).resolve().parent
PAGE: Final = HERE.parents[1] / "docs" / "rivals.md"
INSTALL: Final = "pip install -c constraints.txt -e '.[rivals]' && pip install --no-deps ngboost==0.6.0"
_TREES: Final = {"rounds": 2000, "learning_rate": 0.05, "leaves": 31, "leaf_rows": 20, "row_share": 0.8}
_LIGHTGBM: Final = {**_TREES, "column_share": 0.8, "patience": 50, "folds": 5}
_CATBOOST: Final = {"rounds": 2000, "learning_rate": 0.05, "depth": 6, "l2": 3.0, "patience": 50, "draws": 1}
_CATBOOST_T: Final = {name: value for name, value in _CATBOOST.items() if name != "draws"}
_BOOSTING: Final = {"rounds": 1000, "learning_rate": 0.1, "leaves": 31, "folds": 5, "noise": "auto"}


@dataclass(frozen=True)
class Rival:
    """A rival.

    Attributes:
        method: its method's name; empty for the headline, whose run the project folder has.
        config: the hyperparameters of the fit at its defaults.
        plugin: the file that registers the method, of this folder or a block of docs/rivals.md; empty for a method of
            the project.
        package: the package that must be installed; empty for a method of the project.
        most: the most training rows of a fit.
        about: what it is, for the page.
    """

    method: str
    config: Mapping[str, Any]
    plugin: str = ""
    package: str = ""
    most: int = 1_000_000
    about: str = ""


RIVALS: Final[dict[str, Rival]] = {
    "headline": Rival("", {}, about="`stacked`, as `add` writes it"),
    "constant": Rival("constant", {}, about="the distribution of the training targets"),
    "boosting": Rival("boosting", _BOOSTING, about="the project's `boosting` as `add` runs it"),
    "boosting_t": Rival(
        "boosting",
        {**_BOOSTING, "noise": "student", "categories": "own"},
        about="the project's `boosting` with `noise: student` and `categories: own`",
    ),
    "lightgbm_t": Rival(
        *("lightgbm_t", _LIGHTGBM, "lightgbm.py", "lightgbm"),
        about="LightGBM with its own categories; a Student t of left-out residuals, its scale boosted",
    ),
    "lightgbm_quantiles": Rival(
        *("lightgbm_quantiles", _LIGHTGBM, "lightgbm.py", "lightgbm"),
        about="LightGBM with its own categories; five boosted quantiles",
    ),
    "catboost_own": Rival(
        *("catboost_own", _CATBOOST, "catboost_own.py", "catboost"),
        about="CatBoost with its own categories; a boosted mean and variance",
    ),
    "catboost_ensemble": Rival(
        *("catboost_own", {**_CATBOOST, "draws": 10}, "catboost_own.py", "catboost"),
        about="the same as a virtual ensemble of ten",
    ),
    "catboost_t": Rival(
        *("catboost_t", {**_CATBOOST_T, "folds": 5}, "catboost_own.py", "catboost"),
        about="CatBoost with its own categories; a mean, and a Student t of left-out residuals, its scale boosted",
    ),
    "ngboost": Rival(
        *("ngboost", {"rounds": 500, "learning_rate": 0.01, "patience": 50}, "ngboost.py", "ngboost", 20_000),
        about="NGBoost: a boosted Gaussian on one-hot columns",
    ),
    "realmlp": Rival(
        *("realmlp", {"lr": None, "epochs": None}, "pytabkit_quantiles.py", "pytabkit", 20_000),
        about="RealMLP-TD of pytabkit, trained for five quantiles",
    ),
    "tabm_d": Rival(
        *("tabm_d", {"lr": None, "epochs": None}, "pytabkit_quantiles.py", "pytabkit", 20_000),
        about="TabM-D of pytabkit, trained for five quantiles",
    ),
    "tabpfn": Rival(
        *("tabpfn", {"weights": "tabpfn.ckpt", "estimators": 8}, "tabpfn.py", "tabpfn", 10_000),
        about="TabPFN, from weights that you have",
    ),
}


def file_of(rival: Rival, folder: Path) -> Path:
    """Return the plugin's file; a plugin of docs/rivals.md is written into ``folder``.

    Raises:
        UserError: no block of the page is this plugin.
    """
    if (HERE / rival.plugin).is_file():
        return HERE / rival.plugin
    found = re.search(rf"^```python\n(# plugins/{re.escape(rival.plugin)}\n.*?)^```", PAGE.read_text(), re.M | re.S)
    if found is None:
        raise UserError(f"{PAGE}: must have a plugin {rival.plugin}, and has none")
    write_bytes(folder / rival.plugin, found[1].encode())
    return folder / rival.plugin

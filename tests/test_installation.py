"""The library's wheel, in an environment of its declared dependencies alone."""

import os
import re
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from . import fresh
from .wheel import PROJECT, ROOT, installed, run

pytestmark = [pytest.mark.process, pytest.mark.slow]
PAGES = ("README.md", "docs/api.md")
EXTRA = "from bdl_pipe.baselines.gp import processes; processes()"
EVERY = """
import importlib, pkgutil, bdl_pipe
absent = {}
for module in pkgutil.walk_packages(bdl_pipe.__path__, "bdl_pipe."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        absent[module.name] = error.name
extras = {"baselines.gaussian_processes": "gpytorch", "drawing": "matplotlib", "figures": "matplotlib"}
extras |= dict.fromkeys(("own_model.served", "served_artifact"), "pandas")
assert absent == {f"bdl_pipe.{name}": package for name, package in extras.items()}, absent
assert len(list(bdl_pipe.METHODS.values())) == len(bdl_pipe.METHODS) > 40
for name in bdl_pipe.__all__:
    getattr(bdl_pipe, name)
"""
ESTIMATORS = """
import numpy as np
from bdl_pipe import BayesianClassifier, BayesianRegressor, compare
x = np.random.default_rng(0).normal(size=(60, 2))
print(BayesianRegressor("vbll", pace=0.02).fit(x, x[:, 0]).predict_interval(x[:2]))
print(BayesianClassifier("linear").fit(x, x[:, 0] > 0).predict_proba(x[:2]))
found = compare(x, x[:, 0] + x[:, 1] ** 2, ["linear", "constant"], cv=2)
print(found.verdict)
found.table
"""
COMPILER = """
import sys, numpy as np
from bdl_pipe import BayesianRegressor
x = np.random.default_rng(0).normal(size=(60, 2))
for method in ("vbll", "swag", "map_blr"):
    BayesianRegressor(method, pace=0.02).fit(x, x[:, 0]).predict(x)
print("torch._dynamo" in sys.modules)
import torch
torch.optim.Adam([torch.zeros(1)])
print("torch._dynamo" in sys.modules)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the wheel and the declared dependencies."""
    return installed(tmp_path_factory.mktemp("installation"))


@pytest.fixture(scope="module")
def ran(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Text -> exit code, stdout and stderr; each runs in a fork of a process that has imported declared packages."""
    texts = [EVERY, EXTRA, ESTIMATORS, COMPILER, *(block for page in PAGES for block in blocks(page))]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    imports = "pyarrow.parquet, scipy.stats, sklearn.base, torch"
    folder = tmp_path_factory.mktemp("texts")
    return dict(zip(texts, fresh.run_each(texts, folder, imports, environment, python), strict=True))


def blocks(page: str) -> list[str]:
    return [block.split("```")[0] for block in (ROOT / page).read_text().split("```python\n")[1:]]


def test_at_most_ten_dependencies_are_declared_and_arviz_is_below_1() -> None:
    assert len(PROJECT["dependencies"]) <= 10
    (arviz,) = (r for r in map(Requirement, PROJECT["optional-dependencies"]["pipeline"]) if r.name == "arviz")
    assert "0.23.4" in arviz.specifier and "1.0.0" not in arviz.specifier


def test_packages_of_the_pipeline_are_absent(python: Path) -> None:
    text = "import importlib.util as u; print(*[n for n in ('ray', 'mlflow', 'dvc', 'pandas', 'tensorflow_datasets',"
    text += " 'matplotlib', 'gpytorch', 'optuna', 'arviz', 'pipeline', 'stages') if u.find_spec(n)])"
    done = run(python, "-c", text)
    assert done.returncode == 0 and not done.stdout.strip(), done.stdout + done.stderr


def test_every_module_and_every_method_imports_except_modules_of_extras(ran: dict[str, tuple[int, str, str]]) -> None:
    code, _, error = ran[EVERY]
    assert code == 0, error


def test_the_wheel_has_every_file_of_the_library(python: Path) -> None:
    """Also templates, figures of papers and stored draws, which modules read from their own folders."""
    (wheel,) = python.parents[2].glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("bdl_pipe/")}
    files = (path.relative_to(ROOT / "src") for path in (ROOT / "src/bdl_pipe").rglob("*") if path.is_file())
    assert packed == {path.as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_error_for_an_absent_extra_shows_how_to_install_it(ran: dict[str, tuple[int, str, str]]) -> None:
    _, _, error = ran[EXTRA]
    assert "UserError" in error and "pip install 'bdl-pipe[gp]'" in error.splitlines()[-1]


def test_the_command_says_that_the_pipeline_needs_a_clone_of_the_project(python: Path) -> None:
    command = python.parent / "bdl-pipe"
    if not command.exists():  # pip puts the scripts of --target beside the packages
        (command,) = python.parents[1].rglob("bin/bdl-pipe")
    done = run(python, str(command), "repro")
    assert done.returncode == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert "must be a clone of the project" in line and "git clone" in line


@pytest.mark.parametrize("page", PAGES)
def test_documented_examples_run(ran: dict[str, tuple[int, str, str]], page: str) -> None:
    assert blocks(page)
    for block in blocks(page):
        code, out, error = ran[block]
        assert code == 0, error
        assert re.search(r"tensor|Size|\d", out)


def test_the_estimators_run_and_a_table_without_pandas_names_its_extra(ran: dict[str, tuple[int, str, str]]) -> None:
    _, out, error = ran[ESTIMATORS]
    assert "has the lowest NLL." in out
    assert "ImportError: tables of a comparison need pandas: pip install 'bdl-pipe[figures]'" in error


def test_a_fit_does_not_import_torchs_compiler(ran: dict[str, tuple[int, str, str]]) -> None:
    """Its import takes longer than a small fit; torch's own optimisers do import it."""
    code, out, error = ran[COMPILER]
    assert (code, out.split()) == (0, ["False", "True"]), error

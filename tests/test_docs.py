"""The blocks of README and docs/ are run, or read by the program that would run them."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from bdl_pipe import plugins, registry
from bdl_pipe.config import merge, read
from bdl_pipe.data import sources
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.evaluation import ood_scores
from bdl_pipe.predictive import Categorical
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from pipeline.core.load import typed
from pipeline.core.settings import read_machine
from tests import commands, fresh

from .cases import fit

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "docs/tutorials"  # one process runs all blocks of a page: tests/test_tutorials.py
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if TUTORIALS not in p.parents)]
BLOCKS = [
    pytest.param(page, language, text, id=f"{page.relative_to(ROOT)}-{number}-{language}")
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]
    for number, (language, text) in enumerate(re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S))
]
NOT_RUN = ("# plugins/", '"""plugins/')  # files of a user, which are tested below
INSTALLED = ("README.md", "docs/api.md")  # tests/test_installation.py runs their blocks, with the wheel alone
KINDS = {"python", "sh", "yaml", "diff", "text", ""}
OTHER_PROGRAMS = ("export", "mlflow", "dvc", "git", ".")
WITHOUT_PIPELINE = "\nimport sys\nassert not {'ray', 'mlflow', 'dvc', 'pipeline'} & set(sys.modules)\n"


def of(*languages: str) -> list[Any]:
    return [block for block in BLOCKS if block.values[1] in languages]


ELSEWHERE = [ROOT / page for page in INSTALLED]
RUN = [b for b in of("python") if not str(b.values[2]).startswith(NOT_RUN) and b.values[0] not in ELSEWHERE]


def block(marker: str) -> str:
    (block,) = [str(text) for _, _, text in (b.values for b in BLOCKS) if marker in str(text)]
    return block


def test_every_block_is_in_a_tested_language() -> None:
    assert [b.id for b in BLOCKS if b.values[1] not in KINDS] == []


IMPORTS = "pandas, pyarrow.parquet, safetensors.torch, scipy.stats, sklearn.base, torch._dynamo, torch.utils.data, yaml"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Block -> exit code, stdout and stderr; each runs in a fork of a process that has imported others' packages."""
    folder = tmp_path_factory.mktemp("blocks")
    coreset = folder / "work/coreset/fashion_small-vbpc-ipc10/0-0.safetensors"  # as make repro would leave it
    coreset.parent.mkdir(parents=True)
    save_file({"raw": torch.rand(100, 1, 28, 28), "labels": torch.rand(100, 10)}, coreset)
    texts = [str(b.values[2]) for b in RUN]
    asked = [text + WITHOUT_PIPELINE for text in texts]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return dict(zip(texts, fresh.run_each(asked, folder, IMPORTS, environment), strict=True))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(("page", "language", "text"), RUN)
def test_a_python_block_runs_without_the_pipeline_and_prints_a_result(
    page: Path, language: str, text: str, ran: dict[str, tuple[int, str, str]]
) -> None:
    code, out, error = ran[text]
    assert code == 0, error
    assert re.search(r"tensor|Size|\d", out)


@pytest.mark.parametrize(("page", "language", "text"), of("sh"))
def test_a_shown_command_exists_and_its_arguments_parse(page: Path, language: str, text: str) -> None:
    """The pipeline's arguments parse; params files, modules, Dockerfiles and targets of make exist."""
    for line in text.splitlines():
        words = shlex.split(re.sub(r"^[A-Z_]+=\S+ ", "", line), comments=True)
        if words[:3] == ["python", "-m", "pipeline"]:
            assert commands.parse(words[3:]).info_name in words[3:5]
            assert all((ROOT / word).is_file() for word in words if word.startswith("params/"))
        elif words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M)
        elif words[:2] == ["python", "-m"]:
            module = ROOT / words[2].replace(".", "/")
            assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()
        elif words[:1] == ["docker"]:
            assert (ROOT / words[words.index("-f") + 1]).is_file()
        elif words[:2] == ["pip", "install"]:
            assert words[2] == "." and (ROOT / "pyproject.toml").is_file()
        elif words:
            assert words[0] in OTHER_PROGRAMS, line


@pytest.mark.parametrize(("page", "language", "text"), of("yaml"))
def test_a_yaml_block_is_accepted_as_params_or_as_a_machine_file(
    page: Path, language: str, text: str, tmp_path: Path
) -> None:
    """Each block, merged into params.yaml, is accepted, or is a machine.yaml; ``…`` stands for omitted text."""
    shown = yaml.safe_load(text.split("  photos:")[0].replace("…", ""))
    if "resources" in shown:
        (tmp_path / "machine.yaml").write_text(text)
        read_machine(tmp_path / "machine.yaml").check_methods(registry.METHODS)
        return
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    for section, entries in shown.items():
        raw[section] = {**raw[section], **entries}
    params = typed(raw)
    assert set(shown.get("datasets", {})) <= set(params.datasets)


def test_the_readme_has_at_most_8_kib_and_every_method_is_in_the_table_of_methods() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8192
    table = (ROOT / "docs/methods.md").read_text()
    assert [name for name in registry.METHODS if f"`{name}`" not in table] == []


def plugin_files() -> dict[str, str]:
    """The plugins of the docs: path -> text."""
    texts = [str(text) for _, language, text in (b.values for b in BLOCKS) if language == "python"]
    return {text.partition("\n")[0].removeprefix("# "): text for text in texts if text.startswith("# plugins/")}


def plugin_params() -> dict[str, dict[str, Any]]:
    """The params of each plugin of the docs: path -> the section that its diff shows."""
    added = {}
    for _, language, text in (b.values for b in BLOCKS):
        if language == "diff" and text.startswith(" # params.yaml"):
            kept = "\n".join(line[1:] for line in str(text).splitlines() if not line.startswith("-"))
            section = yaml.safe_load(kept.replace(", …", ""))
            (name,) = section["plugins"]
            added[name] = section
    return added


@pytest.fixture
def plugins_here(forgotten_plugins: None) -> None:
    """Write the plugins of the docs into the working directory."""
    Path("plugins").mkdir()
    for name, text in plugin_files().items():
        Path(name).write_text(text)


@pytest.mark.slow
def test_every_plugin_of_the_docs_is_read_with_its_params(plugins_here: None) -> None:
    assert plugin_files().keys() == plugin_params().keys()
    for name, shown in plugin_params().items():
        raw = yaml.safe_load((ROOT / "params.yaml").read_text())
        params = typed(merge(raw, shown))
        assert params.plugins == [name]
        assert set(shown.get("runs", {})) <= {key for _, key in params.runs}


def test_the_source_of_the_docs_labels_rows_by_their_radius(plugins_here: None) -> None:
    plugins.load(["plugins/rings.py"])
    (shown,) = plugin_params()["plugins/rings.py"]["datasets"].values()
    raw = sources.load(read(DatasetConfig, shown, "datasets.rings").source)
    radius = np.hypot(*raw.train.inputs.T)
    assert len(raw.train) == 400 and ((radius > 1.5) == raw.train.targets).mean() > 0.99


def test_the_run_of_a_trained_module_gives_the_predictions_of_the_module(
    plugins_here: None, tiny_images: FitData
) -> None:
    Path("data").mkdir()
    Path("plugins/mine.py").write_text(block('"""plugins/mine.py'))
    plugins.load_file("plugins/mine.py")
    module = plugins.module_of_file("plugins/mine.py").build((1, 8, 8), classes=3).eval()
    save_file(module.state_dict(), "data/mine.safetensors")
    shown = yaml.safe_load("\n".join(line[1:] for line in block("+  pretrained:").splitlines()))
    params = typed(merge(yaml.safe_load((ROOT / "params.yaml").read_text()), shown))
    run = params.run("trajectory", "fashion_small-mine")
    state = run.stage.fit_one(tiny_images, {}, run.config, rng=Seed(0), report=Silent())
    inputs, _ = tiny_images.tensors("validation")
    written_run = params.run("student", "fashion_small-mine")
    last = written_run.stage.fit_one(
        tiny_images, {"trajectory": [state]}, written_run.config, rng=Seed(0), report=Silent()
    )
    mean = posterior_of(last).predict(inputs, rng=Seed(0)).mean.float()
    torch.testing.assert_close(mean, module(inputs).softmax(-1).detach())


def test_the_score_of_the_docs_equals_its_formula(plugins_here: None) -> None:
    plugins.load(["plugins/margin.py"])
    probs = torch.tensor([[[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]]])
    np.testing.assert_allclose(ood_scores(Categorical(probs.log()))["top_margin"], np.log([3.5, 4 / 3]), rtol=1e-6)


def test_the_method_of_the_docs_fits_predicts_and_checks_its_config(plugins_here: None, tiny_images: FitData) -> None:
    plugins.load(["plugins/snapshots.py"])
    snapshots, trajectory = registry.METHODS["snapshots"], fit("sgd", "trajectory", tiny_images)
    state = snapshots.stages["student"].fit_one(
        tiny_images, {"trajectory": [trajectory]}, snapshots.config(last=2), rng=Seed(0), report=Silent()
    )
    inputs, targets = tiny_images.tensors("validation")
    predictive = registry.posterior_of(state).predict(inputs, rng=Seed(0))
    assert predictive.draw_log_probs.shape == (2, len(targets), tiny_images.outputs)
    with pytest.raises(ConfigError, match=r"methods\.snapshots\.last must be > 0, got 0"):
        read(snapshots.config, {"last": 0}, "methods.snapshots")


def test_the_new_registry_line_has_the_form_of_the_lines_around_it() -> None:
    lines = block("src/bdl_pipe/registry.py").splitlines()
    (old,), (new,) = ([line[1:] for line in lines if line[:1] == sign and '": "' in line] for sign in " +")
    assert f"{old}\n" in (ROOT / "src/bdl_pipe/registry.py").read_text()
    assert re.fullmatch(r' {8}"snapshots": "baselines\.snapshots:SNAPSHOTS",', new)

"""What README and docs/ show is run, or read by what would run it."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from bdl_pipe import registry
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.method import Method
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from pipeline import cli
from pipeline.core.params import typed

from .cases import CONFIGS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(page, language, text, id=f"{page.relative_to(ROOT)}-{number}-{language}")
    for page in PAGES
    for number, (language, text) in enumerate(re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S))
]
KINDS = {"python", "sh", "yaml", "diff", "text", ""}
OTHER_PROGRAMS = ("export", "mlflow", "dvc")
WITHOUT_PIPELINE = "\nimport sys\nassert not {'ray', 'mlflow', 'dvc', 'pipeline'} & set(sys.modules)\n"


def of(*languages: str) -> list[Any]:
    return [block for block in BLOCKS if block.values[1] in languages]


def block(marker: str) -> str:
    (found,) = [str(text) for _, _, text in (b.values for b in BLOCKS) if marker in str(text)]
    return found


@pytest.mark.parametrize(("page", "language", "text"), BLOCKS)
def test_a_block_is_of_a_kind_that_is_tested(page: Path, language: str, text: str) -> None:
    assert language in KINDS


RUNNING = """
import json, os, sys, torch._dynamo
for text, out in json.load(sys.stdin):
    if os.fork() == 0:
        for number, path in ((1, out), (2, out + ".err")):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        exec(compile(text, out, "exec"), {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Block -> exit code, stdout and stderr, each in a process of its own; they have the import of torch in common."""
    folder = tmp_path_factory.mktemp("blocks")
    coreset = folder / "work/coreset/fashion_mnist-vbpc-ipc10/0-0.safetensors"  # one that make repro would leave
    coreset.parent.mkdir(parents=True)
    save_file({"raw": torch.rand(100, 1, 28, 28), "labels": torch.rand(100, 10)}, coreset)
    texts = [str(b.values[2]) for b in of("python") if not str(b.values[2]).startswith("# src/")]
    outs = [folder / str(number) for number in range(len(texts))]
    asked = json.dumps([[text + WITHOUT_PIPELINE, str(out)] for text, out in zip(texts, outs, strict=True)])
    done = subprocess.run(
        [sys.executable, "-c", RUNNING],
        input=asked,
        capture_output=True,
        text=True,
        cwd=folder,
        env=_environment(),
        check=True,
    )
    codes = map(int, done.stdout.split())
    return {
        text: (code, out.read_text(), Path(f"{out}.err").read_text())
        for text, code, out in zip(texts, codes, outs, strict=True)
    }


@pytest.mark.parametrize(("page", "language", "text"), of("python"))
def test_the_library_runs_without_the_pipeline(
    page: Path, language: str, text: str, ran: dict[str, tuple[int, str, str]]
) -> None:
    if text.startswith("# src/"):
        return  # a file of the new method, see below
    code, out, error = ran[text]
    assert code == 0, error
    assert re.search(r"tensor|Size|\d", out)


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@pytest.mark.parametrize(("page", "language", "text"), of("sh"))
def test_a_command_is_one(page: Path, language: str, text: str) -> None:
    """Its arguments are understood, the files that it names are there; targets of make exist."""
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words[:3] == ["python", "-m", "pipeline"]:
            args = cli.parser().parse_args(words[3:])
            assert args.verb == words[3]
            assert all((ROOT / word).is_file() for word in words if word.startswith("params/"))
        elif words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M)
        elif words[:2] == ["python", "-m"]:
            assert (ROOT / f"{words[2].replace('.', '/')}.py").is_file()
        elif words:
            assert words[0] in OTHER_PROGRAMS, line


@pytest.mark.parametrize(("page", "language", "text"), of("yaml"))
def test_params_are_read(page: Path, language: str, text: str) -> None:
    """Each block, merged into params.yaml, is accepted; ``…`` stands for what is left out."""
    shown = yaml.safe_load(text.split("  photos:")[0].replace("…", ""))
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    for section, entries in shown.items():
        raw[section] = {**raw[section], **entries}
    params = typed(raw)
    assert set(shown.get("datasets", {})) <= set(params.datasets)


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8192


def test_every_method_is_in_the_table() -> None:
    table = (ROOT / "docs/methods.md").read_text()
    assert [name for name in registry.METHODS if f"`{name}`" not in table] == []


def new_method() -> tuple[str, tuple[str, str], str]:
    """The example: its module, the (old, new) lines of the registry, and its section of ``methods``."""
    lines = block("src/bdl_pipe/registry.py").splitlines()
    added = [line[1:] for line in lines if line.startswith("+")]
    old = next(line[1:] for line in lines if line.startswith(" ") and line.strip().startswith('"'))
    return block("class SnapshotsConfig"), (f"{old}\n", f"{old}\n{added[0]}\n"), added[1].strip()


def test_the_new_method_is_a_method(tiny_images: FitData, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, object] = {"__name__": "bdl_pipe.baselines.snapshots", "__package__": "bdl_pipe.baselines"}
    monkeypatch.setitem(sys.modules, "bdl_pipe.baselines.snapshots", type(sys)("bdl_pipe.baselines.snapshots"))
    sys.modules["bdl_pipe.baselines.snapshots"].__dict__.update(namespace)
    exec(
        compile(block("class SnapshotsConfig"), "your-method.md", "exec"),
        sys.modules["bdl_pipe.baselines.snapshots"].__dict__,
    )
    snapshots = sys.modules["bdl_pipe.baselines.snapshots"].__dict__["SNAPSHOTS"]
    assert isinstance(snapshots, Method)
    sgd = registry.METHODS["sgd"]
    config = read(sgd.config, CONFIGS["sgd", "classification"], "methods.sgd")
    trajectory = sgd.stages["trajectory"].fit_one(tiny_images, {}, config, rng=Seed(0), report=Silent())
    made = snapshots.stages["student"].fit_one(
        tiny_images, {"trajectory": [trajectory]}, snapshots.config(last=2), rng=Seed(0), report=Silent()
    )
    inputs, targets = tiny_images.tensors("validation")
    predictive = registry.posterior_of(made).predict(inputs, rng=Seed(0))
    assert predictive.draw_log_probs.shape == (2, len(targets), tiny_images.outputs)

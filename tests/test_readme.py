"""The README's code is run as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bdl_pipe import registry
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.method import Method
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed

from .cases import CONFIGS

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```(?:python|diff)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def block(marker: str) -> str:
    (found,) = [text for text in BLOCKS if marker in text]
    return found


@pytest.mark.parametrize("marker", ["vbpc.solve", "import Discriminative", "import bayesianize"])
def test_the_library_by_itself_runs_without_the_pipeline(marker: str) -> None:
    text = block(marker) + "\nimport sys\nassert not {'ray', 'mlflow', 'dvc', 'pipeline'} & set(sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "tensor(" in done.stdout


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
        compile(block("class SnapshotsConfig"), "README.md", "exec"),
        sys.modules["bdl_pipe.baselines.snapshots"].__dict__,
    )
    snapshots = sys.modules["bdl_pipe.baselines.snapshots"].__dict__["SNAPSHOTS"]
    assert isinstance(snapshots, Method)
    sgd = registry.METHODS["sgd"]
    config = read(sgd.config, CONFIGS["sgd", "classification"], "methods.sgd")
    trajectory = sgd.rooms["trajectory"].make(tiny_images, {}, config, rng=Seed(0), report=Silent())
    made = snapshots.rooms["student"].make(
        tiny_images, {"trajectory": [trajectory]}, snapshots.config(last=2), rng=Seed(0), report=Silent()
    )
    inputs, targets = tiny_images.tensors("validation")
    predictive = registry.posterior_of(made).predict(inputs, rng=Seed(0))
    assert predictive.draw_log_probs.shape == (2, len(targets), tiny_images.outputs)

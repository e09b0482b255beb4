"""A method for searches, whose best number and whose score are known: y ~ N(teacher's mean + shift, 1).

The teacher's member i is the mean of the training targets plus ``add`` plus i. The student averages its
inputs' means and moves from there by ``shift``/8 a step, so that a checkpoint is a student with a part of the shift.
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import bdl_pipe.registry
from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import Diverged
from bdl_pipe.method import Inputs, Method, StageSpec
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.progress import Report
from bdl_pipe.seeds import Seed

STEPS = 8
IN_FORCE = 6.0
NAN_ABOVE = 50.0  # a shift at which the fit "diverges"


@dataclass(frozen=True)
class LevelConfig:
    """``add``: a number that is added to the mean."""

    add: float


@dataclass(frozen=True)
class InnerConfig:
    """``shift``: how far the mean moves, in the target's own units; ``more``: a number that is added to ``shift``."""

    shift: float
    more: float = 0.0


@dataclass(frozen=True)
class ShiftConfig:
    """``hold``: a file; while it exists, fits of the hyperparameters in force wait after half of their steps.

    ``fault``: a file; while it exists, these fits fail. ``log``: a file to which each fit adds a line.
    """

    inner: InnerConfig
    hold: str = ""
    fault: str = ""
    log: str = ""


def level(data: FitData, inputs: Inputs, config: LevelConfig, *, rng: Seed, report: Report) -> State:
    member = int(rng.address[-1])
    return State({"mean": torch.tensor(data.train.targets.mean() + config.add + member)}, {"rows": len(data.train)})


def shift(data: FitData, inputs: Inputs, config: ShiftConfig, *, rng: Seed, report: Report) -> State:
    if config.inner.shift > NAN_ABOVE:
        raise Diverged("the loss became nan")
    last = report.load()
    start = 0 if last is None else int(last.config["step"])
    if config.log:
        with open(config.log, "a") as log:
            log.write(f"{config.inner.shift} {start} {rng.address[-1]}\n")
    if config.fault and Path(config.fault).exists() and config.inner.shift == IN_FORCE:
        raise RuntimeError("a fault")
    for step in range(start, STEPS):
        report(step + 1, STEPS)
        if report.due():
            report.save(State({}, {"step": step + 1}))
        if config.hold and config.inner.shift == IN_FORCE and step + 1 == STEPS // 2:
            wait_while(Path(config.hold))
    return _fitted(data, inputs, config.inner.shift + config.inner.more)


def wait_while(path: Path) -> None:
    """Show by a second file that the work waits, and wait until the test removes ``path``."""
    if path.exists():
        path.with_name(f"{path.name}.waits").touch()
    while path.exists():
        time.sleep(0.01)


def peek(checkpoint: State, data: FitData, inputs: Inputs, config: ShiftConfig, *, rng: Seed) -> State:
    return _fitted(data, inputs, config.inner.shift * checkpoint.config["step"] / STEPS)


def _fitted(data: FitData, inputs: Inputs, shift: float) -> State:
    mean = torch.stack([s.tensors["mean"] for s in inputs["teacher"]]).mean() + shift
    assert data.transform.shift is not None and data.transform.scale is not None
    spec = NetworkSpec(MlpConfig("mlp", (1,)), data.input_shape, 1, "gaussian_head")
    weights = {k: torch.zeros_like(v) for k, v in spec.build(Seed(0)).state_dict().items()}
    scale = data.transform.scale.double()
    standard = (mean.double() - data.transform.shift.double()) / scale
    weights["head.bias"] = torch.cat([standard, -2 * scale.log()]).float()
    return NetworkDraws.of(spec, [weights]).state()


LEVEL = Method("level", LevelConfig, ("regression",), {"teacher": StageSpec(level)})
SHIFT = Method(
    "shift",
    ShiftConfig,
    ("regression",),
    {"student": StageSpec(shift, needs={"teacher": "all"}, from_checkpoint=peek)},
    {"inner.shift": (-20.0, 20.0, "linear")},
)
REGISTRY = {"level": LEVEL, "shift": SHIFT}

PARAMS = Path(__file__).with_name("toy.yaml").read_text()


def project(folder: Path, **shift: str) -> None:
    """Write params.yaml and the data set, and prepare it; ``shift``: further keys of that method."""
    from tests.pipeline import walk

    rng = np.random.default_rng(0)
    x = rng.normal(size=80)
    rows = "\n".join(f"{a:.6f},{b:.6f}" for a, b in zip(x, 30 + 2 * x + rng.normal(size=80), strict=True))
    (folder / "toy.csv").write_text(f"x,y\n{rows}\n")
    section = yaml.safe_dump({"inner": {"shift": IN_FORCE}, **shift}, default_flow_style=True, width=4096).strip()
    (folder / "params.yaml").write_text(PARAMS.replace("{inner: {shift: 6.0}}", section))
    walk.stage("prepare", "toy")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A prepared project, which each test copies."""
    folder = tmp_path_factory.mktemp("toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(bdl_pipe.registry, "METHODS", REGISTRY)
        project(folder)
    return folder


@pytest.fixture
def toy(made, tmp_path, monkeypatch):
    """A copy of the project for one test."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bdl_pipe.registry, "METHODS", REGISTRY)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path

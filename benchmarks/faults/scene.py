"""Where a fault happens: a project, a cluster of two nodes, and the command that runs there."""

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks import namespaces

ROOT: Final = Path(__file__).resolve().parents[2]
COMMAND: Final = (sys.executable, "-m", "pipeline", "repro", "-j", "2", "student")
PARAMS: Final[dict[str, Any]] = {
    "seed": 0,
    "datasets": {
        "digits": {
            "source": {"name": "digits"},
            "splits": 1,
            "normalise": "train",
            "whiten": False,
            "validation": 0.2,
            "fit_rows": "train_and_validation",
            "ood": [],
            "corrupted_images": 0,
            "corruptions": "made",
        }
    },
    "methods": {
        "sgd": {
            "network": {"name": "mlp", "hidden": [32]},
            "epochs": 120,
            "snapshots": 1,
            "batch": 32,
            "optimiser": {"name": "adamw", "lr": 3.0e-3, "weight_decay": 1.0e-4},
        },
        "deterministic": {},
    },
    "trajectories": {"digits-sgd": {"dataset": "digits", "method": "sgd", "seeds": 2, "input": "prepare/digits"}},
    "teachers": {},
    "coresets": {},
    "runs": {
        "digits-deterministic": {
            "dataset": "digits",
            "method": "deterministic",
            "setting": "tiny",
            "seeds": 2,
            "input": "trajectory/digits-sgd",
        }
    },
    "evaluate": {"calibration_bins": 15, "batch": 1000, "joint_pairs": 0},
    "report": {"figures_dpi": 110},
}


@dataclass
class Scene:
    """Where a fault happens: a project, its cluster, and the command that runs."""

    folder: Path
    cluster: namespaces.Cluster
    stack: ExitStack
    commands: "list[subprocess.Popen[str]]" = field(default_factory=list)
    temporary: Path | None = None

    def start(self) -> "subprocess.Popen[str]":
        """Start the command; its output goes to a file with the command's number."""
        with (self.folder.parent / f"command-{len(self.commands)}.log").open("w") as log:
            process = subprocess.Popen(
                COMMAND,
                cwd=self.folder,
                env=environment(self.folder) | {"RAY_ADDRESS": self.cluster.address},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.commands.append(process)
        self.stack.callback(namespaces.stop, process)
        return process

    def said(self, number: int) -> list[str]:
        """Return the lines that a command printed, without the folders of this machine."""
        text = (self.folder.parent / f"command-{number}.log").read_text(errors="replace")
        lines = text.replace(str(self.folder), "PROJECT").replace(self.cluster.address, "HEAD:PORT").splitlines()
        return [line.rstrip() for line in lines if line.strip()]


def prepared(folder: Path, epochs: int) -> Path:
    """Clone the last commit, with a small graph as its params.yaml and its data prepared."""
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", str(folder)], check=True)
    (folder / "dvc.lock").unlink(missing_ok=True)
    raw = {**PARAMS, "methods": {**PARAMS["methods"], "sgd": {**PARAMS["methods"]["sgd"], "epochs": epochs}}}
    (folder / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    command, settings = [sys.executable, "-m", "stages", "prepare", "digits"], environment(folder)
    subprocess.run(command, cwd=folder, env=settings | {"BDL_EXECUTOR": "inline"}, check=True, capture_output=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the settings of a command in ``folder``."""
    settings = {
        "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)]),
        "BDL_EXECUTOR": "ray",
        "BDL_TRACKING": "off",
        "BDL_CHECKPOINT_SECONDS": "1",
        "DVC_NO_ANALYTICS": "1",
        "OMP_NUM_THREADS": "1",
    }
    return bare() | settings


def bare() -> dict[str, str]:
    """Return this process's environment without our settings, or Ray's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BDL_", "RAY_", "PYTHON"))}
    return kept | {"PATH": f"{namespaces.BIN}{os.pathsep}{kept['PATH']}", "RAY_USAGE_STATS_ENABLED": "0"}

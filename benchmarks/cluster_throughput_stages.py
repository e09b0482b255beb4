"""The cost of a stage in a graph of many trivial stages."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]


def stages(count: int) -> dict[str, float]:
    """Seconds per stage of ``count`` trivial stages: to run a stage, and to record it with DVC."""
    with tempfile.TemporaryDirectory(prefix="bdl-stages-") as folder:
        place = Path(folder)
        for name in ("pipeline", "stages", "src", "plugins"):
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        (place / ".dvc").mkdir()
        for name in ("dvc.yaml", ".dvcignore", ".gitignore", ".dvc/config", ".dvc/.gitignore"):
            shutil.copy(ROOT / name, place / name)
        (place / "params.yaml").write_text(yaml.safe_dump(_params(count), sort_keys=False))
        environment = {**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{place / 'src'}", "BDL_TRACKING": "off"}
        for command in (["git", "init", "-q"], ["git", "add", "-A"]):
            subprocess.run(command, cwd=place, check=True)
        start = time.perf_counter()
        said = subprocess.run(
            [sys.executable, "-m", "pipeline", "repro", "trajectory"],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        whole = time.perf_counter() - start
        (ran,) = (float(line.split(" in ")[1].split()[0]) for line in said.splitlines() if "stages done in" in line)
    return {"stages": count, "run_seconds": ran / count, "other_seconds": (whole - ran) / count}


def _params(count: int) -> dict[str, Any]:
    network = {"name": "mlp", "hidden": [4]}
    sgd = {"network": network, "epochs": 1, "snapshots": 1, "batch": 256, "optimiser": {"name": "adam", "lr": 1e-3}}
    data = {"source": {"name": "boston"}, "normalise": "train", "whiten": False, "validation": 0.2, "splits": 1}
    data |= {"fit_rows": "train_and_validation", "ood": [], "corrupted_images": 0, "corruptions": "made"}
    rows = {
        f"boston-{number}": {"dataset": "boston", "method": "sgd", "seeds": 1, "input": "prepare/boston"}
        for number in range(count)
    }
    return {
        "seed": 0,
        "datasets": {"boston": data},
        "methods": {"sgd": sgd},
        "trajectories": rows,
        "teachers": {},
        "coresets": {},
        "runs": {},
        "evaluate": {"calibration_bins": 15, "batch": 1000, "joint_pairs": 0},
        "report": {"figures_dpi": 110},
    }

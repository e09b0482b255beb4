"""Small fitted posteriors with known answers, as student artifacts."""

import json
from pathlib import Path

import torch

from bdl_pipe import artifacts
from bdl_pipe.data.transform import Transform
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.seeds import Seed

CLASSES = ["ankle boot", "bag", "coat"]
FEATURES = ["age", "rooms"]


def student(path: Path, task: str = "classification", images: bool = False, draws: int = 3) -> Path:
    """A student artifact of a tiny network with random weights, as the student stage writes it."""
    shape = (1, 4, 4) if images else (2,)
    classes = CLASSES if task == "classification" else []
    outputs, likelihood = (3, "categorical") if classes else (1, "gaussian_head")
    spec = NetworkSpec(MlpConfig("mlp", (5,)), shape, outputs, likelihood)
    posterior = NetworkDraws.of(spec, [dict(spec.build(Seed(7).fold(i)).state_dict()) for i in range(draws)])
    scale = {} if classes else {"shift": torch.tensor([20.0]), "scale": torch.tensor([9.0])}
    if images:
        transform = Transform("image", torch.tensor([0.5]), torch.tensor([0.25]), **scale)
    else:
        transform = Transform("table", torch.tensor([40.0, 6.0]), torch.tensor([10.0, 2.0]), **scale)
    schema = {
        "task": task,
        "kind": "image" if images else "table",
        "classes": classes,
        "input_shape": list(shape),
        "features": [] if images else FEATURES,
        "targets": ["label" if classes else "price"],
    }
    with artifacts.publish(path, "student", about={"seed": 0, "run": path.name}) as folder:
        artifacts.write_state(folder / "0-0", posterior.state())
        artifacts.write_state(folder / "transform-0", transform.state())
        (folder / "schema.json").write_text(json.dumps(schema))
    return path

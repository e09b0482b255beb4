"""Three lines for arrays, for classes and for a model: what they print by the wheel alone, and how long each takes.

    python -m benchmarks.three_lines

builds the wheel, makes an environment that holds it, its declared dependencies and nothing else (``tests/wheel.py``),
and runs each example in a new process of one thread. It writes ``results/three_lines.md``: the lines, their output,
and the processor time of each.
"""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from pipeline.core.records import device_name
from tests.wheel import ROOT, installed, run

OUT: Final = ROOT / "results/three_lines.md"
EXAMPLES: Final = {
    "Numbers: 500 rows of 8 columns": """
import numpy as np
X = np.random.default_rng(0).normal(size=(600, 8))
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * np.random.default_rng(1).normal(size=600)
from bdl_pipe import BayesianRegressor
model = BayesianRegressor("vbll").fit(X[:500], y[:500])
print(model.predict(X[500:502]), model.predict_interval(X[500:502], level=0.9))
""",
    "Classes: 500 rows of 8 columns": """
import numpy as np
X = np.random.default_rng(0).normal(size=(600, 8))
labels = np.where(X[:, 0] + X[:, 1] ** 2 + np.random.default_rng(1).normal(size=600) > 1, "up", "down")
from bdl_pipe import BayesianClassifier
model = BayesianClassifier("linear").fit(X[:500], labels[:500])
print(model.predict_proba(X[500:502]), model.score(X[500:], labels[500:]))
""",
    "Your own model: an image network, 500 images of 3 × 8 × 8": """
import torch
from torch import nn
seed, x = torch.manual_seed(0), torch.randn(500, 3, 8, 8)
loader = [(x, (x.mean((1, 2, 3)) > 0).long())]
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 2))
from bdl_pipe import bayesianise
posterior = bayesianise(net, "kfac_laplace", loader)
print(posterior.predict(x[:2]).mean)
""",
}
CHILD: Final = """
import sys, time
for line in sys.argv[1].strip().splitlines():
    print(">>>", line)
    start = time.process_time()
    exec(line, globals())
    print(f"# {time.process_time() - start:.2f} s")
"""


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        python = installed(Path(folder))
        for name, text in EXAMPLES.items():
            done = run(python, "-c", CHILD, text)
            if done.returncode:
                raise SystemExit(done.stderr)
            parts += [f"## {name}", f"```text\n{done.stdout}```"]
    OUT.write_text("\n\n".join([*_head(), *parts]) + "\n")


def _head() -> list[str]:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT)
    made = f"{commit.stdout.strip()}, {device_name('cpu')}"
    busy = f"{os.getloadavg()[0]:.1f} processes were running on {os.cpu_count()} cores"
    return [
        "# Three lines, by the wheel alone",
        "`python -m benchmarks.three_lines` installs the wheel without extras and runs each example in a new process.",
        f"Commit {made}, one thread. A comment is the processor time of the line above it; "
        f"{busy} at the end, and a busy machine lengthens it.",
    ]


if __name__ == "__main__":
    main()

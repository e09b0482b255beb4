"""Laplace's approximation of heads as users have them, beside laplace-torch: covariances of logits, and the evidence.

    pip install --no-deps laplace-torch==0.3 asdfghjkl backpack-for-pytorch unfoldNd opt_einsum
    pip install --no-deps torchmetrics lightning_utilities
    python -m benchmarks.laplace_heads          # writes results/laplace_heads.md

The model is a perceptron of 16 units that is trained here on 300 rows of three classes. Its head has a bias or not; its
trunk is plain, deeper, or under weight norm. Both sides have K-FAC of the last layer on all rows with the prior
precision 2, and a predictive that is exact for a linear head. An error is the Frobenius norm of a difference of the
covariances of logits at 40 new rows, over the norm of the other side.

K-FAC of a head with a bias has two forms: the bias is one more feature (Martens & Grosse 2015, ours), or a block of its
own without covariance with the weights (laplace-torch). The last column compares each with the generalised Gauss-Newton
matrix of all weights of the head, which both approximate.
"""

import sys
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, TensorDataset

from bdl_pipe import bayesianise
from bdl_pipe.progress import Report
from bdl_pipe.trajectory.linearised import LinearisedLaplace
from benchmarks import written

OUT: Final = Path("results/laplace_heads.md")
PRECISION, ROWS, NEW, WIDTH, CLASSES = 2.0, 300, 40, 16, 3
HEAD: Final = (
    "model",
    "to laplace-torch",
    "to dense K-FAC of our form",
    "precision of most evidence, ours",
    "laplace-torch",
    "to the Gauss-Newton matrix: ours, laplace-torch",
)


def main() -> None:
    """Write the page."""
    loader = DataLoader(rows(), batch_size=100)
    new = torch.randn(NEW, 2, generator=torch.Generator().manual_seed(5))
    lines = list[list[str]]()
    for name, model in models().items():
        own, (other, best) = ours(model, loader, new), theirs(model, loader, new, "kron")
        whole, _ = theirs(model, loader, new, "full")
        errors = (off(own, other), off(own, dense(model, new)), off(own, whole), off(other, whole))
        cells = [f"{errors[0]:.1g}", f"{errors[1]:.1g}", f"{evidence(model, loader):.4f}", f"{best:.4f}"]
        lines.append([name, *cells, f"{errors[2]:.3f}, {errors[3]:.3f}"])
    table, title = written.table(HEAD, lines), "Heads under Laplace's approximation"
    OUT.write_text(written.page(title, __doc__, written.origin(), table))


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 2, generator=generator)
    logits = torch.stack([x[:, 0], x[:, 1], -x.sum(1)], 1)
    return TensorDataset(x, (logits + torch.randn(ROWS, CLASSES, generator=generator)).argmax(1))


def models() -> dict[str, nn.Sequential]:
    """Return a trained model of each kind."""
    found = {}
    for name in ("head without a bias", "head with a bias", "weight norm in the trunk", "two layers in the trunk"):
        generator = torch.Generator().manual_seed(1)
        first: nn.Module = nn.Linear(2, WIDTH)
        first = weight_norm(first) if name.startswith("weight norm") else first
        deeper = [nn.Linear(WIDTH, WIDTH), nn.Tanh()] if name.startswith("two") else []
        head = nn.Linear(WIDTH, CLASSES, bias=name != "head without a bias")
        model = nn.Sequential(first, nn.Tanh(), *deeper, head)
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator) / 2)
        rule, (x, y) = torch.optim.Adam(model.parameters(), 1e-2), rows().tensors
        for _ in range(200):
            rule.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            rule.step()
        found[name] = model.eval()
    return found


def ours(model: nn.Module, loader: DataLoader[Any], new: Tensor) -> Tensor:
    """Return the covariance of the logits at new rows [row, class, class]."""
    config = {"prior_precision": PRECISION, "predictive": "linearised"}
    posterior = bayesianise(model, "kfac_laplace", loader, config=config).inner
    assert isinstance(posterior, LinearisedLaplace)
    return posterior.functions(new[:, None, None, None]).covariance.double()


def theirs(model: nn.Module, loader: DataLoader[Any], new: Tensor, structure: str) -> tuple[Tensor, float]:
    """Return laplace-torch's covariance, and the prior precision that maximises its evidence."""
    from laplace import Laplace

    found = Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure=structure)
    found.fit(loader)
    found.optimize_prior_precision(method="marglik", n_steps=500, lr=1e-1)
    best = float(found.prior_precision)
    found.prior_precision = PRECISION
    return found._glm_predictive_distribution(new)[1].detach().double(), best


@torch.no_grad()
def dense(model: nn.Sequential, new: Tensor) -> Tensor:
    """Return the covariance of the logits by the definition of K-FAC, in float64, with the bias as one more feature."""
    head, (x, _) = model[-1], rows().tensors
    assert isinstance(head, nn.Linear)

    def features(inputs: Tensor) -> Tensor:
        found = model[:-1](inputs).double()
        return found if head.bias is None else nn.functional.pad(found, (0, 1), value=1.0)

    p, phi = model(x).double().softmax(-1), features(x)
    outputs = (p.diag_embed() - p[:, :, None] * p[:, None]).sum(0)
    curvature = torch.kron(outputs, phi.T @ phi / ROWS)
    covariance = torch.linalg.inv(curvature + PRECISION * torch.eye(len(curvature), dtype=torch.float64))
    jacobian = torch.einsum("ck,rf->rckf", torch.eye(CLASSES).double(), features(new)).flatten(2)
    return jacobian @ covariance @ jacobian.mT


def evidence(model: nn.Module, loader: DataLoader[Any]) -> float:
    """Return the prior precision that maximises our evidence."""
    seen: list[float] = []

    class Keeps(Report):
        def __call__(self, step: int, total: int, metrics: Any = None) -> None:
            seen.extend([metrics["prior_precision"]] if "prior_precision" in (metrics or {}) else [])

    bayesianise(model, "kfac_laplace", loader, report=Keeps())
    return seen[-1]


def off(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


if __name__ == "__main__":
    sys.exit(main())

"""results/vbpc/inner.md: other inner problems in place of VBPC's closed form (Lee et al. 2025, appendix D).

    python -m pipeline repro prepare@fashion_small
    python -m benchmarks.vbpc_inner --steps 20   # --prepared DIR

Appendix D names what the Gaussian likelihood of the head avoids: a Laplace approximation on the softmax likelihood,
without or with updates of the head's weights, and variational inference for all weights. Each learns a coreset of five
images a class by the same outer loop (12,000 training rows, a pool of networks of width 16), and its student is scored
on 2,500 validation rows. Test rows are not read.

- ``closed form``: the method.
- ``laplace, updated``: the mode of the softmax likelihood by Newton steps in function space, where n̂k replaces hk. The
  labels are logits of soft targets. Only the last Newton step has a graph: Newton's map has no derivative in its
  start at the mode, so that this is the gradient of the mode itself and nothing is unrolled.
- ``laplace, not updated``: the curvature at the head that the pool's network has. The mean does not depend on the
  coreset, so that only the variance has a gradient.
- ``mean-field``: a Gaussian for each weight of the network, by five unrolled gradient steps from the network's weights
  with one draw each, and two draws in the outer loss; its student takes 200 steps and eight draws. It is untempered, as
  the KL of all weights is thousands of nats; the prior variance of a weight is 1/fan-in.

Seconds are processor time of an outer step, the mean over the run; memory is the peak of an outer step beside its
inputs. Errors are standard errors over three seeds. "Closed form" in the last columns is the student's closed-form head
on the same coreset. A difference of less than 4.3 of its errors (95 % by Student's t) is not established, marked ~.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bdl_pipe import networks
from bdl_pipe.coresets.shared.descent import distilled_stage
from bdl_pipe.coresets.shared.init import Coreset, balanced
from bdl_pipe.coresets.shared.pool_surrogate import OuterProblem, PoolSurrogate
from bdl_pipe.coresets.shared.trunk import TrunkObjective, features
from bdl_pipe.coresets.vbpc.method import DatasetLoss, VbpcConfig
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.predictive import mean_field
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training.loop import OptimiserConfig, run_steps
from benchmarks import vbpc_small as small
from benchmarks import written
from benchmarks.coresets import peak_bytes

IPC, SCORED, STUDENT = 5, 2_500, 4.303  # STUDENT: the quantile .975 of Student's t with two degrees of freedom
NEWTON, SHORTEST, UNROLLED, INNER_RATE, DRAWS = 8, 1e-3, 5, 1e-3, 2
STUDENT_STEPS, STUDENT_DRAWS = 200, 8

LogProbs = Callable[[Tensor], Tensor]  # images or features [b, ...] -> log-probabilities [b, k]


def laplace(phi: Tensor, labels: Tensor, rho: float, weight: float, head: Tensor | None) -> LogProbs:
    """Return the log-probabilities of a Laplace approximation of the softmax likelihood, as a function of features.

    Args:
        weight: of the coreset's log-likelihood, γ/β_S.
        head: weights [h, k] at which the curvature is taken; None takes the mode.
    """
    (n, k), kernel, targets = labels.shape, phi @ phi.T / rho, labels.softmax(1)

    def curvature(f: Tensor) -> tuple[Tensor, Tensor]:
        """H [n, k, k] of the negative log-likelihood, and I + H K [nk, nk]."""
        p = f.softmax(1)
        h = weight * (torch.diag_embed(p) - p[:, :, None] * p[:, None])
        return h, torch.eye(n * k).to(f) + torch.einsum("icd,ij->icjd", h, kernel).reshape(n * k, n * k)

    def newton(f: Tensor) -> Tensor:
        h, system = curvature(f)
        right = (h @ f[:, :, None])[..., 0] + weight * (targets - f.softmax(1))
        return torch.linalg.solve(system, right.flatten()).view(n, k)  # K⁻¹f of the next f

    def objective(dual: Tensor) -> Tensor:
        f = kernel @ dual
        return weight * (targets * f.log_softmax(1)).sum() - 0.5 * (dual * f).sum()

    if head is None:
        with torch.no_grad():
            dual = torch.zeros_like(labels)
            for _ in range(NEWTON):
                move, size = newton(kernel @ dual) - dual, 1.0
                while size > SHORTEST and objective(dual + size * move) < objective(dual):
                    size /= 2
                dual = dual + size * move
        dual = newton(kernel @ dual)
        f = kernel @ dual
    else:
        f = phi @ head
    h, system = curvature(f)
    blocks = torch.linalg.solve(system, torch.block_diag(*h)).view(n, k, n, k).diagonal(dim1=1, dim2=3)  # [n, n, k]

    def log_probs(test: Tensor) -> Tensor:
        cross = test @ phi.T / rho
        mean = cross @ dual if head is None else test @ head
        prior = test.square().sum(1)[:, None] / rho
        return mean_field(mean, (prior - torch.einsum("bi,ijc,bj->bc", cross, blocks, cross)).clamp_min(0))

    return log_probs


def all_weights(
    network: networks.Network, coreset: Tensor, labels: Tensor, gamma: float, steps: int, draws: int, rng: Seed
) -> LogProbs:
    """Return the log-probabilities of a mean-field Gaussian of all weights, by gradient steps from the network's.

    With gradients enabled, the steps have a graph, so that the result is differentiable in the coreset.
    """
    graph, generator = torch.is_grad_enabled() and coreset.requires_grad, rng.fold("weights").generator()
    means = {k: v.detach().clone().requires_grad_() for k, v in network.named_parameters() if k != "head.bias"}
    priors = {k: v[0].numel() ** -0.5 if v.ndim > 1 else 1.0 for k, v in means.items()}
    logs = {k: torch.full_like(v, math.log(0.1 * priors[k])).requires_grad_() for k, v in means.items()}

    def drawn() -> dict[str, Tensor]:
        noise = {k: torch.randn(v.shape, generator=generator) for k, v in means.items()}
        return {k: means[k] + logs[k].exp() * noise[k] for k in means}

    with torch.enable_grad():
        for _ in range(steps):
            outputs = torch.func.functional_call(network, drawn(), (coreset,))
            fit = 0.5 * (outputs - labels).square().sum(1).mean()
            ratios = [(logs[k].exp().square() + means[k].square()) / priors[k] ** 2 for k in means]
            kl = sum(
                (0.5 * ratio - 0.5 - logs[k] + math.log(priors[k])).sum()
                for k, ratio in zip(means, ratios, strict=True)
            )
            leaves = [*means.values(), *logs.values()]
            slopes = torch.autograd.grad(fit + kl / (gamma * len(labels)), leaves, create_graph=graph)
            moved = [leaf - INNER_RATE * slope for leaf, slope in zip(leaves, slopes, strict=True)]
            if not graph:
                moved = [leaf.detach().requires_grad_() for leaf in moved]
            means, logs = dict(zip(means, moved, strict=False)), dict(zip(logs, moved[len(means) :], strict=True))

    def log_probs(images: Tensor) -> Tensor:
        outputs = [torch.func.functional_call(network, drawn(), (images,)).log_softmax(1) for _ in range(draws)]
        return torch.stack(outputs).logsumexp(0) - math.log(draws)

    return log_probs


class InnerLoss(PoolSurrogate):
    """The mean loss of a batch under an inner problem, times the number of rows."""

    def __init__(self, data: FitData, config: VbpcConfig, memory: Any, rng: Seed) -> None:
        super().__init__(data, config, memory, rng)
        self._rows, self._vbpc = len(data.train), config

    def outer_loss(self, problem: OuterProblem) -> tuple[Tensor, Tensor]:
        log_probs = self.answer(self._vbpc, problem)
        return self._rows * F.nll_loss(log_probs, problem.classes), log_probs

    def answer(self, config: VbpcConfig, problem: OuterProblem) -> Tensor:
        """Return the log-probabilities of the batch."""
        raise NotImplementedError


class LaplaceLoss(InnerLoss):
    updated = True

    def answer(self, config: VbpcConfig, problem: OuterProblem) -> Tensor:
        network, coreset, labels, images = problem[:4]
        head = None if self.updated else network.head.weight.detach().T
        phi = features(network, coreset, config.feature_scale)
        with torch.no_grad():
            test = features(network, images, config.feature_scale)
        return laplace(phi, labels, config.rho, config.gamma / len(labels), head)(test)


@final
class UntouchedLaplaceLoss(LaplaceLoss):
    updated = False


@final
class MeanFieldLoss(InnerLoss):
    def answer(self, config: VbpcConfig, problem: OuterProblem) -> Tensor:
        network, coreset, labels, images = problem[:4]
        return all_weights(network, coreset, labels, config.gamma, UNROLLED, DRAWS, problem.rng)(images)


INNER: Final[
    dict[str, tuple[type[PoolSurrogate], float]]
] = {  # the surrogate, and the scale of the labels at the start
    "closed form": (DatasetLoss, 1.0),
    "laplace, updated": (LaplaceLoss, 4.0),
    "laplace, not updated": (UntouchedLaplaceLoss, 1.0),
    "mean-field": (MeanFieldLoss, 1.0),
}


def main() -> None:
    options = small.arguments(__doc__)
    data, figures = small.load_data(options.prepared), small.Figures(f"vbpc_inner-{options.steps}")
    found = {
        name: [
            figures.get(f"{name}, {seed}", lambda n=name, s=seed: measured(data, n, options.steps, s))
            for seed in small.SEEDS
        ]
        for name in INNER
    }
    best = np.array([figure["closed form"] for figure in found["closed form"]])
    rows = []
    for name, seeds in found.items():
        values = np.array([figure["scores"] for figure in seeds])
        other = np.array([figure["closed form"] for figure in seeds])
        texts = [
            f"{statistics.mean(f['seconds'] for f in seeds):.3f}",
            f"{statistics.mean(f['MiB'] for f in seeds):.0f}",
        ]
        for column, reference in ((values[:, 0], best[:, 0]), (values[:, 1], None), (other[:, 0], best[:, 0])):
            mark = ""
            if reference is not None and np.any(gaps := column - reference):
                mark = "" if abs(gaps.mean()) > STUDENT * written.mean_and_error(gaps.tolist())[1] else "~ "
            texts.append(mark + small.mean_and_error(column.tolist()))
        rows.append((name, *texts))
    head = ("inner problem", "seconds", "MiB", "NLL", "accuracy", "NLL by closed form")
    parts = [
        written.table(head, rows),
        "~: the difference from the closed form's own NLL, paired by seed, is not established.",
    ]
    small.write_page("inner", "Other inner problems for VBPC", __doc__, parts, figures.seconds(), options.steps)


def measured(data: FitData, name: str, steps: int, seed: int) -> dict[str, Any]:
    """Learn a coreset with one inner problem, and return its cost, and its student's NLL and accuracy."""
    (surrogate, scale), rng = INNER[name], Seed(seed).fold("inner")
    config = small.vbpc_config(steps)
    config = replace(config, ipc=IPC, coreset=replace(config.coreset, label_scale=scale))
    began = time.process_time()
    stage = distilled_stage("vbpc", surrogate.of_fit, "coreset")
    state = stage.fit_one(data, {}, config, rng=rng.fold("coreset"), report=Silent())
    seconds = (time.process_time() - began) / steps
    start = balanced(data, IPC, scale, rng=rng.fold("coreset").fold("start"))
    step = surrogate(data, config, None, rng)

    def one_step() -> None:
        images, labels = start.images.clone().requires_grad_(), start.labels.clone().requires_grad_()
        torch.autograd.grad(step.loss(images, labels, 0, rng), (images, labels), allow_unused=True)

    one_step()
    memory = peak_bytes(one_step, "cpu") / 2**20
    ours, closed = predictions(data, Coreset.from_state(state), config, name, rng)
    return {"seconds": seconds, "MiB": memory, "scores": ours, "closed form": closed}


def predictions(
    data: FitData, coreset: Coreset, config: VbpcConfig, name: str, rng: Seed
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Train a network on the coreset; return NLL and accuracy under the inner problem, and under the closed form."""
    order = rng.fold("validation").numpy().permutation(len(data.validation))[:SCORED]
    inputs, classes = data.transform.rows(data.validation.inputs[order], data.validation.targets[order])
    network = networks.build(config.network, data.input_shape, data.outputs, rng=rng.fold("network"))
    task = TrunkObjective(network, coreset, config.student.augmentation, rng.fold("student"))
    run_steps(task, OptimiserConfig("adam", config.student.lr), config.student.steps, Silent())
    network.eval()
    with torch.no_grad():
        phi = features(network, coreset.images, config.feature_scale)
        test = torch.cat([features(network, part, config.feature_scale) for part in inputs.split(250)])
        closed = config.solve(network, coreset.images, coreset.labels).predict(test).log_probs
        log_probs = closed
        if name.startswith("laplace"):
            head = None if "not" not in name else network.head.weight.T
            weight = config.gamma / len(coreset.labels)
            log_probs = laplace(phi, coreset.labels, config.rho, weight, head)(test)
        elif name == "mean-field":
            answer = all_weights(
                network, coreset.images, coreset.labels, config.gamma, STUDENT_STEPS, STUDENT_DRAWS, rng
            )
            log_probs = torch.cat([answer(part) for part in inputs.split(1000)])
    return scores(log_probs, classes), scores(closed, classes)


def scores(log_probs: Tensor, classes: Tensor) -> tuple[float, float]:
    return float(F.nll_loss(log_probs, classes)), float((log_probs.argmax(1) == classes).double().mean())


if __name__ == "__main__":
    main()

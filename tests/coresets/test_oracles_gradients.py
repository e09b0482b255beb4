"""The gradients of the methods' own surrogates against central differences of the same values written by hand.

A softplus network of width 2 on images of 4×4 pixels, in float64. Each reference is written draw by draw and step by
step, with its own forward pass. The parts that a method detaches are computed once, at the images of the base point:
the steps to θ_S (not in ``bpc_w``), the chains, the centred likelihoods of ``bpc_rkl``. Method and reference use the
same draw of the augmentation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets import frepo
from bdl_pipe.coresets.bpc import methods
from bdl_pipe.coresets.bpc.experts import Experts
from bdl_pipe.coresets.shared.init import Coreset, balanced
from bdl_pipe.coresets.vbpc.method import VBPC, DatasetLoss
from bdl_pipe.data.augment import AugmentConfig, augment
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.seeds import Seed

from .cases import central, drawn, projected, relative, tiny_data, tiny_vbpc
from .test_bpc_methods import OUTER, experts, read

NETWORK = {"name": "convnet", "width": 2, "blocks": 1, "norm": "none"}
OPERATIONS = {"colour": 0.25, "crop": 1.25, "rotate": 15.0, "translate": 0.125, "cutout": 0.25, "noise": 0.1}
AUGMENTATION = {"choose": "all", "operations": OPERATIONS}
COARSE = tiny_vbpc()["coreset"] | {"augmentation": AUGMENTATION}
PLAIN, AUGMENTED = AugmentConfig("all", {}), AugmentConfig("all", OPERATIONS)
CLASSES, BETA = 3, 2.0
HERE = Seed(8)
SURROGATES: dict[str, type] = {
    "bpc_fkl": methods._ForwardKl,
    "bpc_rkl": methods._ReverseKl,
    "bpc_w": methods._Wasserstein,
    "bpc_cd": methods._Contrastive,
    "fbpc": methods._FunctionSpace,
}


class DoubleData(FitData):
    """A fit's data, whose batches are float64."""

    def batch(self, size: int, rng: Seed) -> tuple[Tensor, Tensor]:
        inputs, classes = super().batch(size, rng)
        return inputs.double(), classes


def data() -> DoubleData:
    small = tiny_data(rows=30, side=4)
    return DoubleData(small.task, small.train, small.validation, small.transform, small.classes)


def smoothed(network: nn.Module) -> None:
    """Put a softplus in place of each ReLU."""
    for name in [name for name, module in network.named_modules() if isinstance(module, nn.ReLU)]:
        network.set_submodule(name, nn.Softplus(beta=BETA))


def features(weights: Sequence[Tensor], images: Tensor) -> Tensor:
    kernel, bias = weights[:2]
    return F.avg_pool2d(F.softplus(F.conv2d(images, kernel, bias, padding=1), beta=BETA), 2).flatten(1)


def forward(vector: Tensor, images: Tensor) -> Tensor:
    """The network by hand, from one vector of its 47 weights."""
    kernel, bias, head, head_bias = vector.split([18, 2, 8 * CLASSES, CLASSES])
    return features((kernel.reshape(2, 1, 3, 3), bias), images) @ head.reshape(CLASSES, 8).T + head_bias


class Reference:
    """The surrogates' values at the address ``HERE``, by hand."""

    def __init__(self, name: str, read_experts: Experts, start: Coreset, section: Any) -> None:
        self.name, self.section, self.classes = name, section, start.classes
        self.augmentation = section.outer.augmentation
        self.expert = HERE.fold("expert").integer() % len(read_experts)
        self.epoch = HERE.fold("epoch").integer() % section.start_epochs
        self.weights = [read_experts.weights(self.expert, t) for t in range(read_experts.epochs + 1)]
        self.data = data()

    def likelihood(self, logits: Tensor) -> Tensor:
        return torch.stack([row.log_softmax(0)[c] for row, c in zip(logits, self.classes, strict=True)]).mean()

    def slope(self, step: int, weights: Tensor, images: Tensor) -> Tensor:
        """The gradient of the mean cross-entropy in the weights."""
        pictures = augment(images, self.augmentation, HERE.fold("inner", step))
        leaf = weights.clone().requires_grad_()
        (slope,) = torch.autograd.grad(-self.likelihood(forward(leaf, pictures)), leaf)
        return slope

    def path(self, images: Tensor, rate: float) -> list[Tensor]:
        path = [self.weights[self.epoch]]
        for step in range(self.section.inner.steps):
            path.append(path[-1] - rate * self.slope(step, path[-1], images))
        return path

    def chain(self, start: Tensor, images: Tensor) -> Tensor:
        """All chains; their noise is drawn together, [chain, weight]."""
        c, ends = self.section, start.clone()
        for step in range(c.steps):
            noise = drawn(*start.shape, at=HERE.fold("langevin", step))
            for k in range(len(start)):
                slope = c.weight * len(images) * self.slope(step, ends[k], images)
                drift = slope + c.prior_precision * ends[k]
                ends[k] = ends[k] - c.step_size / 2 * drift + (c.step_size * c.temperature) ** 0.5 * noise[k]
        return ends

    def at(self, held: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the surrogate as a function of the images, with the detached parts computed at ``held``."""
        c, path = self.section, [] if self.name == "bpc_cd" else self.path(held, self.section.inner.lr)
        if self.name == "bpc_w":
            return lambda images: self.distance(images, c.inner.lr)
        if self.name == "fbpc":
            iterates = (path[-c.inner.ahead :], self.weights[self.epoch + 1 : self.epoch + 1 + c.inner.ahead])
            return lambda images: self.difference(*(self.functions(i, self.pictures(images)) for i in iterates))
        count = c.chains if self.name == "bpc_cd" else c.draws
        noise = c.sd * drawn(count, len(self.weights[0]), at=HERE.fold("noise"))
        if self.name == "bpc_cd":
            positive = self.weights[self.epoch] + noise
            negative = self.chain(positive, held)
        elif self.name == "bpc_fkl":
            positive, negative = self.weights[self.epoch + c.inner.ahead] + noise, path[-1] + noise
        else:
            return self.covariance(path[-1] + noise, held)
        return lambda images: self.difference(*(self.outputs(draws, images) for draws in (negative, positive)))

    def pictures(self, images: Tensor) -> Tensor:
        return augment(images, self.augmentation, HERE.fold("augment"))

    def outputs(self, draws: Sequence[Tensor] | Tensor, images: Tensor) -> list[Tensor]:
        pictures = self.pictures(images)
        return [forward(w, pictures) for w in draws]

    def difference(self, negative: Sequence[Tensor], positive: Sequence[Tensor]) -> Tensor:
        first, second = ([self.likelihood(logits) for logits in each] for each in (negative, positive))
        return sum(first) / len(first) - sum(second) / len(second)  # type: ignore[return-value]

    def distance(self, images: Tensor, rate: float) -> Tensor:
        end, start = self.path(images, rate)[-1], self.weights[self.epoch]
        target = self.weights[self.epoch + self.section.inner.ahead]
        return (end - target).square().sum() / (start - target).square().sum()

    def covariance(self, draws: Tensor, held: Tensor) -> Callable[[Tensor], Tensor]:
        c = self.section
        rows, classes = self.data.batch(c.batch, HERE.fold("batch"))

        def coreset(images: Tensor) -> list[Tensor]:
            return [self.likelihood(logits) for logits in self.outputs(draws, images)]

        of_rows = [forward(w, rows).log_softmax(1)[torch.arange(c.batch), classes].mean() for w in draws]
        differences = [f - c.weight * s for f, s in zip(of_rows, coreset(held), strict=True)]
        middle = sum(differences) / len(draws)
        return lambda images: (
            -sum((d - middle) * s for d, s in zip(differences, coreset(images), strict=True)) / (len(draws) - 1)
        )

    def functions(self, iterates: Sequence[Tensor], pictures: Tensor) -> list[Tensor]:
        values = [forward(w, pictures) for w in iterates]
        generator, count, c = HERE.fold("functions").generator(), len(values), self.section
        z = torch.randn(c.draws, count, generator=generator, dtype=torch.float64)
        epsilon = torch.randn((c.draws, *values[0].shape), generator=generator, dtype=torch.float64)
        middle = sum(values) / count
        return [
            values[-1]
            + sum(float(z[m, t]) * (values[t] - middle) for t in range(count)) / (count - 1) ** 0.5
            + c.noise * epsilon[m]
            for m in range(c.draws)
        ]


@pytest.fixture(scope="module")
def double_experts() -> Experts:
    states = experts(2, data(), network=NETWORK)
    wide = [
        State({k: v.double() if v.is_floating_point() else v for k, v in s.tensors.items()}, s.config) for s in states
    ]
    read_back = Experts(wide, data())
    smoothed(read_back.network.network)
    return read_back


def case(name: str, read_experts: Experts) -> tuple[Any, Reference, Tensor]:
    """The production surrogate, its reference, and the images."""
    changes = {"ipc": 1, "outer": OUTER | {"augmentation": AUGMENTATION}}
    section = read(name, **changes)
    if hasattr(section, "sd"):
        section = replace(section, sd=0.1)
    start = balanced(data(), 1, 1.0, rng=Seed(5))
    surrogate: Any = SURROGATES[name](read_experts, start, data(), section)
    if name == "bpc_w":
        surrogate._moved = surrogate._moved.detach().double().requires_grad_()
    return surrogate, Reference(name, read_experts, start, section), start.images.double()


@pytest.mark.parametrize("name", SURROGATES)
def test_the_gradient_of_every_surrogate_equals_central_differences(name: str, double_experts: Experts) -> None:
    """It changes without the augmentation, with another draw, and if the detached parts are differentiated, too."""
    surrogate, reference, images = case(name, double_experts)
    leaf = images.clone().requires_grad_()
    value = surrogate.surrogate(leaf, HERE)
    (gradient,) = torch.autograd.grad(value, leaf)
    held = reference.at(images)
    assert float(value.detach()) == pytest.approx(float(held(images)), rel=1e-11)
    assert relative(projected(gradient), central(held, images)) < 1e-8
    surrogate.augmentation = PLAIN
    for changed, address in ((AUGMENTED, HERE.fold("another")), (PLAIN, HERE)):
        surrogate.augmentation = changed
        (wrong,) = torch.autograd.grad(surrogate.surrogate(leaf, address), leaf)
        assert relative(wrong, gradient) > 1e-2
    if name != "bpc_w":
        assert relative(central(lambda x: reference.at(x)(x), images), projected(gradient)) > 1e-2


def test_the_gradient_of_the_learned_rate_equals_central_differences(double_experts: Experts) -> None:
    """The rate is learned as a logarithm, in a unit that suits the images' rate; without it the gradient differs."""
    surrogate, reference, images = case("bpc_w", double_experts)
    (moved,) = surrogate.parameters()
    (gradient,) = torch.autograd.grad(surrogate.surrogate(images, HERE), moved)
    rate, unit = reference.section.inner.lr, reference.section.lr_step / reference.section.outer.optimiser.lr
    ahead, behind = (reference.distance(images, rate * math.exp(unit * step)) for step in (1e-5, -1e-5))
    expected = float(ahead - behind) / 2e-5
    assert float(gradient) == pytest.approx(expected, rel=1e-7)
    assert float(gradient) != pytest.approx(expected / unit, rel=1e-2)


def frepo_loss(
    phi: Tensor, labels: Tensor, batch: Tensor, classes: Tensor, weights: Tensor, held: Tensor | None = None
) -> Tensor:
    """Kernel ridge regression from features, errors weighted by row, and the margins; ``held``: of a fixed penalty."""
    kernel, penalised = phi @ phi.T, phi if held is None else held
    penalty = 0.1 * penalised.square().sum() / len(phi)
    inverse = torch.linalg.inv(kernel + penalty * torch.eye(len(phi)).double())
    errors = (batch @ phi.T @ inverse @ labels - F.one_hot(classes, CLASSES) + 1 / CLASSES).square().sum(1)
    top = labels.sort(1, descending=True).values
    return 0.5 * (weights * errors).sum() - (top[:, 0] - top[:, 1]).clamp(max=1 / CLASSES).mean()


def test_the_gradients_of_frepo_equal_central_differences() -> None:
    """In images and labels, through the ridge, which depends on the images; with a fixed ridge the gradient differs."""
    section = {"ipc": 1, "network": NETWORK, "ridge": 0.1, "coreset": COARSE}
    surrogate = frepo._RidgeLoss(data(), config.read(frepo.FrepoConfig, section, "methods.frepo"), None, Seed(2))
    images, labels, rows, classes = start_of(surrogate, 1)
    labels = torch.tensor([[0.1], [0.15], [1.0]]) * labels  # margins at and below their largest
    weights = list(surrogate._pool.draw(3)[1].parameters())[:2]
    batch, share = features(weights, rows).detach(), torch.full((len(rows),), 1 / len(rows)).double()

    def phi(images: Tensor) -> Tensor:
        return features(weights, augment(images, AUGMENTED, HERE.fold("coreset"))).detach()

    def value(images: Tensor, labels: Tensor, held: Tensor | None = None) -> Tensor:
        return frepo_loss(phi(images), labels, batch, classes, share, held)

    check(lambda x, y: surrogate.loss(x, y, 3, HERE), value, images, labels, 1e-8)
    fixed = central(lambda x: value(x, labels, phi(images)), images)
    assert relative(fixed, central(lambda x: value(x, labels), images)) > 1e-2


def start_of(surrogate: Any, ipc: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A surrogate's pool in float64: images, labels off their ties, and an augmented batch with its classes."""
    for member in surrogate._pool._members:
        smoothed(member.network.double())
    start = balanced(data(), ipc, 1.0, rng=Seed(5))
    rows, classes = data().batch(COARSE["batch"], HERE.fold("batch"))
    labels = start.labels.double() + 0.01 * drawn(*start.labels.shape, at=HERE)
    return start.images.double(), labels, augment(rows, AUGMENTED, HERE.fold("augment")), classes


def check(
    loss: Callable[[Tensor, Tensor], Tensor],
    value: Callable[[Tensor, Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    most: float,
    digits: float = 1e-10,
) -> None:
    """Compare a loss and its gradients in images and labels with a value by hand and its central differences."""
    leaves = images.clone().requires_grad_(), labels.clone().requires_grad_()
    value_of_loss = loss(*leaves)
    of_images, of_labels = torch.autograd.grad(value_of_loss, leaves)
    assert float(value_of_loss.detach()) == pytest.approx(float(value(images, labels)), rel=digits)
    assert relative(projected(of_images), central(lambda x: value(x, labels), images)) < most
    assert relative(projected(of_labels), central(lambda y: value(images, y), labels)) < most


def dense_outer_loss(
    phi: Tensor, labels: Tensor, batch: Tensor, classes: Tensor, section: Any, weights: Tensor | None = None
) -> Tensor:
    """Eq. 27 with V, its determinant and its trace, by the formulas of Lee et al. 2025; 30 rows, weighted."""
    (n, h), k = phi.shape, labels.shape[1]
    covariance = torch.linalg.inv(section.rho * torch.eye(h).double() + section.gamma / n * phi.T @ phi)
    mean = section.gamma / n * covariance @ phi.T @ labels
    logits = batch @ mean / (1 + math.pi / 8 * ((batch @ covariance) * batch).sum(1))[:, None].sqrt()
    trace = k * section.rho * covariance.trace() + section.rho * mean.square().sum()
    kl = 0.5 * (trace - k * torch.linalg.slogdet(covariance)[1] - k * h * math.log(section.rho) - k * h)
    losses = F.cross_entropy(logits, classes, reduction="none")
    return 30 * (losses.mean() if weights is None else (weights * losses).sum()) + section.beta_dataset * kl


LAYERS = [("instance", "average"), ("batch", "average"), ("batch_stats", "average"), ("group", "max"), ("none", "max")]


@pytest.mark.parametrize(("norm", "pool"), LAYERS, ids="-".join)
@pytest.mark.parametrize("ipc", [1, 4], ids=["dual", "primal"])
def test_the_gradients_of_vbpc_equal_central_differences(ipc: int, norm: str, pool: str) -> None:
    """In images and labels, of the dense loss, with the draw of the augmentation; another draw changes the gradient."""
    width = 8 if ipc == 1 or norm == "group" else 2  # 3 rows of 32 numbers, or 12 of 8
    network = {"name": "convnet", "width": width, "blocks": 1, "norm": norm, "pool": pool}
    changes = {"beta_dataset": 0.1, "feature_scale": 0.7, "rho": 2.0, "gamma": 20.0}
    section = config.read(VBPC.config, tiny_vbpc(network=network, ipc=ipc, coreset=COARSE) | changes, "methods.vbpc")
    surrogate = DatasetLoss(data(), section, None, Seed(2))
    images, labels, rows, classes = start_of(surrogate, ipc)
    trunk = surrogate._pool.draw(3)[1].eval().trunk
    batch = 0.7 * trunk(rows).detach()

    def value(images: Tensor, labels: Tensor, address: Seed = HERE) -> Tensor:
        phi = 0.7 * trunk(augment(images, AUGMENTED, address.fold("coreset"))).detach()
        return dense_outer_loss(phi, labels, batch, classes, section)

    check(lambda x, y: surrogate.loss(x, y, 3, HERE), value, images, labels, 1e-7)
    here, another = (central(lambda x, at=at: value(x, labels, at), images) for at in (HERE, HERE.fold("another")))
    assert relative(another, here) > 1e-2

"""Scores of unfamiliar rows against dense formulas, row by row, and against the package pytorch-ood.

The package is an oracle where it is installed: ``pip install pytorch-ood`` (version 0.4.0, which brings torchvision).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from bdl_pipe.metrics import ood
from bdl_pipe.metrics.ood.arrays import principal_dimension
from bdl_pipe.seeds import Seed

CLASSES, WIDTH = 3, 8


@dataclass(frozen=True)
class Cells:
    """Features around class means that are not 0, a linear layer over them, and rows to score."""

    train: np.ndarray
    labels: np.ndarray
    features: np.ndarray
    weight: np.ndarray
    bias: np.ndarray

    def logits(self, features: np.ndarray) -> np.ndarray:
        return features @ self.weight.T + self.bias

    def log_probs(self, features: np.ndarray) -> np.ndarray:
        logits = self.logits(features)
        return logits - np.log(np.exp(logits).sum(1, keepdims=True))

    @property
    def layer(self) -> list[tuple[np.ndarray, float]]:
        return list(zip(self.weight, self.bias.tolist(), strict=True))

    @property
    def origin(self) -> np.ndarray:
        return -np.linalg.pinv(self.weight) @ self.bias


def cells() -> Cells:
    random = Seed(37).fold("cells").numpy()
    labels = np.arange(90) % CLASSES
    mixing = random.normal(size=(WIDTH, WIDTH)) / 2
    train = 2 + 3 * random.normal(size=(CLASSES, WIDTH))[labels] + random.normal(size=(90, WIDTH)) @ mixing
    features = np.concatenate([train[:7] + 0.1, random.normal(size=(20, WIDTH)) * 4])
    return Cells(train, labels, features, random.normal(size=(CLASSES, WIDTH)), random.normal(size=CLASSES))


def kl(one: Cells) -> np.ndarray:
    train, rows = np.exp(one.log_probs(one.train)), np.exp(one.log_probs(one.features))
    typical = [train[train.argmax(1) == k].mean(0) for k in sorted({*train.argmax(1)})]
    return np.array([-min(sum(p * np.log(p / d)) for d in typical) for p in rows])


def mahalanobis(one: Cells) -> np.ndarray:
    means = [one.train[one.labels == k].mean(0) for k in range(CLASSES)]
    within = sum(np.outer(row - means[k], row - means[k]) for row, k in zip(one.train, one.labels, strict=True))
    inverse = np.linalg.inv(within / len(one.train))
    return np.array([-min((row - mean) @ inverse @ (row - mean) for mean in means) for row in one.features])


def relative(one: Cells) -> np.ndarray:
    inverse = np.linalg.inv(np.cov(one.train.T, ddof=0))
    away = one.features - one.train.mean(0)
    return mahalanobis(one) + np.array([row @ inverse @ row for row in away])


def third_nearest(one: Cells) -> np.ndarray:
    train, rows = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (one.train, one.features))
    return np.array([-sorted(np.linalg.norm(row - train, axis=1))[2] for row in rows])


def vim(one: Cells) -> np.ndarray:
    """The projector of the principal space by the singular vectors of the rows, not by their covariance."""
    away, rows = one.train - one.origin, one.features - one.origin
    _, _, directions = np.linalg.svd(away, full_matrices=False)
    rest = np.eye(WIDTH) - directions[: WIDTH // 2].T @ directions[: WIDTH // 2]
    alpha = one.logits(one.train).max(1).mean() / np.linalg.norm(away @ rest, axis=1).mean()
    energies = np.log(np.exp(one.logits(one.features)).sum(1))
    return energies - alpha * np.linalg.norm(rows @ rest, axis=1)


def react(one: Cells) -> np.ndarray:
    """Entry by entry: one threshold for all features, by sorting the training rows' activations."""
    ordered = sorted(float(value) for row in one.train for value in row)
    place = 0.9 * (len(ordered) - 1)
    below = ordered[int(place)]
    limit = below + (place - int(place)) * (ordered[int(place) + 1] - below)
    clipped = [[min(float(value), limit) for value in row] for row in one.features]
    each = [[sum(w * h for w, h in zip(ws, row, strict=True)) + b for ws, b in one.layer] for row in clipped]
    return np.array([np.log(sum(np.exp(z) for z in logits)) for logits in each])


DENSE: dict[str, tuple[Callable[[Cells], Any], Callable[[Cells], np.ndarray]]] = {
    "max_softmax": (
        lambda c: ood.max_softmax(c.log_probs(c.features)),
        lambda c: np.log(np.exp(c.log_probs(c.features)).max(1)),
    ),
    "max_logit": (lambda c: ood.max_logit(c.logits(c.features)), lambda c: np.array([*map(max, c.logits(c.features))])),
    "energy": (
        lambda c: ood.energy(c.logits(c.features), 2.0),
        lambda c: 2 * np.log(np.exp(c.logits(c.features) / 2).sum(1)),
    ),
    "entropy": (
        lambda c: ood.entropy(c.log_probs(c.features)),
        lambda c: np.array([sum(p * np.log(p)) for p in np.exp(c.log_probs(c.features))]),
    ),
    "gen": (
        lambda c: ood.gen(c.log_probs(c.features), 0.1, 2),
        lambda c: np.array(
            [-sum(p**0.1 * (1 - p) ** 0.1 for p in sorted(row)[-2:]) for row in np.exp(c.log_probs(c.features))]
        ),
    ),
    "kl_matching": (lambda c: ood.kl_matching(c.log_probs(c.train), c.log_probs(c.features)), kl),
    "mahalanobis": (lambda c: ood.mahalanobis(c.train, c.labels, c.features), mahalanobis),
    "relative_mahalanobis": (lambda c: ood.relative_mahalanobis(c.train, c.labels, c.features), relative),
    "nearest": (lambda c: ood.nearest(c.train, c.features, 3), third_nearest),
    "react": (lambda c: ood.react(c.train, c.features, c.weight, c.bias), react),
    "vim": (lambda c: ood.vim(c.train, c.logits(c.train), c.features, c.logits(c.features), c.origin), vim),
}


@pytest.mark.parametrize("name", DENSE)
def test_a_score_equals_its_formula(name: str) -> None:
    ours, oracle = DENSE[name]
    np.testing.assert_allclose(ours(cells()), oracle(cells()), rtol=1e-9, atol=1e-9)


def test_wrong_variants_differ_from_the_formulas() -> None:
    """The controls of the comparison: features as they are, an origin at 0, one class, no relative distance.

    And of ReAct: a threshold of each feature, no threshold, and activations above it set to 0, as in other methods.
    """
    one = cells()
    centred = Cells(one.train, np.zeros_like(one.labels), one.features, one.weight, one.bias)
    wrong: dict[str, Any] = {
        "nearest": -np.sort(np.linalg.norm(one.features[:, None] - one.train, axis=2), axis=1)[:, 2],
        "vim": ood.vim(one.train, one.logits(one.train), one.features, one.logits(one.features), 0 * one.origin),
        "mahalanobis": ood.mahalanobis(centred.train, centred.labels, one.features),
        "relative_mahalanobis": ood.mahalanobis(one.train, one.labels, one.features),
    }
    each = np.percentile(one.train, 90, axis=0)
    limit = np.percentile(one.train, 90)
    clipped = {
        "of each feature": np.minimum(one.features, each),
        "none": one.features,
        "set to 0": np.where(one.features > limit, 0, one.features),
    }
    for layer, features in clipped.items():
        assert not np.allclose(ood.energy(one.logits(features)), react(one), rtol=1e-2), layer
    for name, values in wrong.items():
        assert not np.allclose(values, DENSE[name][1](one), rtol=1e-2), name


def test_mutual_information_matches_the_joint_table_of_label_and_draw() -> None:
    """From the joint table of draw and label: I = Σ p(s, y) log p(s, y) / (p(s) p(y))."""
    logits = Seed(1).numpy().normal(size=(4, 6, CLASSES))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    joint = probs / 4
    information = (joint * np.log(joint / (joint.sum(0) * joint.sum(2, keepdims=True)))).sum((0, 2))
    np.testing.assert_allclose(ood.mutual_information(np.log(probs)), -information, rtol=1e-10)
    np.testing.assert_allclose(ood.mutual_information(np.log(probs[:1])), 0, atol=1e-15)


def test_nearly_certain_rows_keep_their_order() -> None:
    """In float32 a probability of 1 − 1e-9 is 1: GEN still orders such rows, by log p."""
    rest = np.array([1e-9, 1e-12, 1e-15])
    logs = np.stack([-rest, np.log(rest / 2), np.log(rest / 2)], axis=1)
    assert (np.diff(ood.gen(logs)) > 0).all() and (np.diff(ood.max_softmax(logs)) > 0).all()
    assert np.isfinite(ood.gen(np.array([[0.0, -np.inf, -np.inf]]))).all()


def test_mahalanobis_leaves_out_a_direction_without_variance() -> None:
    one = cells()
    dead = np.concatenate([one.train, np.ones((90, 1))], axis=1)
    asked = np.concatenate([one.features, np.full((27, 1), 5.0)], axis=1)
    np.testing.assert_allclose(ood.mahalanobis(dead, one.labels, asked), mahalanobis(one), rtol=1e-8)


def test_vim_and_react_are_none_where_the_principal_space_or_the_threshold_leaves_nothing() -> None:
    """Every training row in the principal space, and features of a ReLU that are mostly 0."""
    one = cells()
    flat = one.train[:, :2] @ Seed(2).numpy().normal(size=(2, WIDTH))
    assert ood.vim(flat, one.logits(flat), one.features, one.logits(one.features), np.zeros(WIDTH)) is None
    assert [principal_dimension(width) for width in (2048, 768, 767, 128)] == [1000, 512, 383, 64]  # as in the paper
    sparse = np.where(np.arange(one.train.size).reshape(one.train.shape) % 20 == 0, abs(one.train), 0.0)
    assert ood.react(sparse, one.features, one.weight, one.bias) is None
    assert ood.react(sparse, one.features, one.weight, one.bias, percentile=99) is not None


@pytest.mark.parametrize("name", DENSE)
def test_a_score_matches_pytorch_ood(name: str) -> None:
    """The package's scores are high where a row is unfamiliar; some differ by a factor that changes no order."""
    detector = pytest.importorskip("pytorch_ood.detector", reason="compares with the package pytorch-ood 0.4.0")
    one, kind = cells(), torch.float64
    train, features = torch.tensor(one.train), torch.tensor(one.features)
    logits, train_logits = torch.tensor(one.logits(one.features)), torch.tensor(one.logits(one.train))
    labels = torch.tensor(one.labels)
    fitted_last = {"d": WIDTH // 2, "w": torch.tensor(one.weight), "b": torch.tensor(one.bias)}
    theirs: dict[str, Callable[[], torch.Tensor]] = {
        "max_softmax": lambda: -(-detector.MaxSoftmax.score(logits)).log(),
        "max_logit": lambda: detector.MaxLogit.score(logits),
        "energy": lambda: detector.EnergyBased.score(logits, 2.0),
        "entropy": lambda: detector.Entropy.score(logits),
        "gen": lambda: (
            2 * detector.GEN.score(logits / 9, gamma=0.1, M=2)
        ),  # a mean over classes, of p in 1e-7 … 1 − 1e-7
        "kl_matching": lambda: detector.KLMatching(None).fit_logits(train_logits, labels).predict_logits(logits),
        "mahalanobis": lambda: (  # half the distance by the sum of squares
            2
            * len(train)
            * detector.Mahalanobis(None).fit_features(train.float(), labels).predict_features(features.float())
        ),
        "relative_mahalanobis": lambda: (
            len(train) * detector.RMD(None).fit_features(train.float(), labels).predict_features(features.float())
        ),
        "nearest": lambda: torch.as_tensor(
            detector.KNN(None, k=3).fit_features(train, labels).predict_features(features)
        ),
        "react": lambda: (
            detector.ReAct(lambda x: x, lambda h: torch.nn.functional.linear(h, fitted_last["w"], fitted_last["b"]))
            .fit_feature_maps(train, labels)
            .predict_feature_maps(features)
        ),
        "vim": lambda: detector.ViM(None, **fitted_last).fit_features(train, labels).predict_features(features),
    }
    flat = torch.log_softmax(logits / 9, 1).numpy()
    ours = ood.gen(flat, 0.1, 2) if name == "gen" else DENSE[name][0](one)
    np.testing.assert_allclose(ours, -theirs[name]().to(kind).numpy(), rtol=2e-3, atol=2e-3)

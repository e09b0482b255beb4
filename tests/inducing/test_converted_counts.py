"""Converted ResNets store what tables 9 and 10 of Ritter et al. 2021 say, as integers; see ``test_counts``."""

import pytest
import torch
from torch import nn

from bdl_pipe.inducing import bayesianize
from bdl_pipe.networks import ResNetConfig, build
from bdl_pipe.seeds import Seed

from .test_counts import MEMBERS, TABLE_9, TABLE_10_FFG_W, inducing, plain


@pytest.fixture(scope="module")
def resnet50() -> nn.Module:
    return build(ResNetConfig("resnet", 50), (3, 32, 32), 10, rng=Seed(0))


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def converted(network: nn.Module, kind: str, m: int, **options: object) -> int:
    options = {"lambda_max": 0.1, "sd_max": 0.1} | options
    return count(bayesianize(network, kind=kind, rows=m, cols=m, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", TABLE_9)
@pytest.mark.parametrize("m", TABLE_9["ffg_u"])
def test_table_9(resnet50: nn.Module, kind: str, m: int) -> None:
    assert converted(resnet50, kind, m) == TABLE_9[kind][m]


def test_weight_space_is_the_first_row_of_table_10(resnet50: nn.Module) -> None:
    assert converted(resnet50, "ffg_w", 64) == TABLE_10_FFG_W["1"]


@pytest.mark.parametrize(("kind", "sets"), [("ffg_u", 2), ("ensemble_u", MEMBERS), ("ensemble_u", 3)])
def test_resnet_18(kind: str, sets: int) -> None:
    network = build(ResNetConfig("resnet", 18), (3, 32, 32), 100, rng=Seed(0))
    assert converted(network, kind, 32, members=sets) == inducing(plain(18, classes=100), 32, sets)


def test_conversion_leaves_the_given_network(resnet50: nn.Module) -> None:
    before = [p.detach().clone() for p in resnet50.parameters()]
    converted(resnet50, "ffg_u", 16)
    assert all(torch.equal(p, b) for p, b in zip(resnet50.parameters(), before, strict=True))


@pytest.mark.parametrize(("cap", "saved"), [("lambda_max", 54), ("sd_max", 54 * 16**2)])
def test_a_cap_of_0_stores_no_spread(resnet50: nn.Module, cap: str, saved: int) -> None:
    """Without λ one number a layer less, without deviations of U one U less."""
    assert TABLE_9["ffg_u"][16] - converted(resnet50, "ffg_u", 16, **{cap: 0}) == saved

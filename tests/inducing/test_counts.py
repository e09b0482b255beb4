"""Converted ResNets store what tables 9 and 10 of Ritter et al. 2021 say, cell by cell, as integers.

The networks here are lists of layers written from He et al. 2016 alone. One convention gives every cell:

* a layer of d_out outputs and d_in inputs (channels · k · k; the bias of the linear layer is one more) stores Z_r
  [M, d_out], Z_c [M, d_in], the diagonals of D_r and D_c [M each], one λ, and q(U): means and deviations of M × M
  (FFG-U) or 5 members of M × M (Ensemble-U). Batch norms stay. The last layer has M_out = M too, although the
  text says that M_out = 10 was used there: with 10 the counts would be lower by (M − 10)(d_out + 1 + 2M).
* pruning FFG-U to a fraction f keeps f of the entries of all Z_r and Z_c; the rest stays.
* pruning FFG-W to f keeps ⌊2f · weights⌋ of the means and deviations of the whole network's weights; the 10 biases
  of the head, a mean and a deviation each, and the batch norms are not pruned. At f = 0.001 that is the odd number
  46,935, half a weight more than a mask can keep: the column is arithmetic, not a count of a pruned network.
"""

import math
from fractions import Fraction

import pytest
from torch import nn

from bdl_pipe.inducing import Bayesian, bayesianize, prune, stored
from bdl_pipe.inducing.pruning import kept_counts
from bdl_pipe.inducing.sparse import Kept
from bdl_pipe.networks import ResNetConfig, build
from bdl_pipe.seeds import Seed
from tests.networks.cases import Plain, parameters, plain

MEMBERS = 5
TABLE_9 = {
    "ffg_u": {16: 1_384_662, 32: 2_771_446, 64: 5_710_902, 128: 12_253_366, 256: 27_992_502},
    "ensemble_u": {16: 1_426_134, 32: 2_937_334, 64: 6_374_454, 128: 14_907_574, 256: 38_609_334},
}
TABLE_10_FFG_W = {"1": 46_988_564, "0.5": 23_520_852, "0.1": 4_746_682, "0.01": 522_494, "0.001": 100_075}
TABLE_10_FFG_U = {"1": 5_710_902, "0.75": 4_408_790, "0.5": 3_106_678, "0.25": 1_804_566}


def inducing(network: Plain, m: int, sets: float) -> float:
    """Numbers stored: ``sets`` matrices of the size of U in q(U), 2 for FFG-U and the members for Ensemble-U."""
    return network.kept + sum(m * (d_out + d_in) + 2 * m + 1 + sets * m**2 for d_out, d_in in network.layers)


def z_entries(network: Plain, m: int) -> int:
    return sum(m * (d_out + d_in) for d_out, d_in in network.layers)


@pytest.fixture(scope="module")
def resnet50() -> nn.Module:
    return build(ResNetConfig("resnet", 50), (3, 32, 32), 10, rng=Seed(0))


def converted(network: nn.Module, kind: str, m: int, **options: object) -> int:
    options = {"lambda_max": 0.1, "sd_max": 0.1} | options
    return parameters(bayesianize(network, kind=kind, rows=m, cols=m, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", TABLE_9)
@pytest.mark.parametrize("m", TABLE_9["ffg_u"])
def test_a_converted_resnet50_stores_the_counts_of_table_9(resnet50: nn.Module, kind: str, m: int) -> None:
    counts = converted(resnet50, kind, m), inducing(plain(50), m, {"ffg_u": 2, "ensemble_u": MEMBERS}[kind])
    assert counts == (TABLE_9[kind][m], TABLE_9[kind][m])


@pytest.mark.parametrize(
    ("kind", "m", "sets"),
    [("ffg_u", 32, 2), ("ensemble_u", 32, MEMBERS), ("ensemble_u", 32, 3), ("fcg_u", 4, 1 + (4**2 + 1) / 2)],
)
def test_a_converted_resnet18_stores_the_numbers_of_the_formula(kind: str, m: int, sets: float) -> None:
    """FCG-U stores the means and a triangle of M² × M² numbers."""
    network = build(ResNetConfig("resnet", 18), (3, 32, 32), 100, rng=Seed(0))
    members = {"members": sets} if m == 32 else {}
    assert converted(network, kind, m, **members) == inducing(plain(18, classes=100), m, sets)


@pytest.mark.parametrize(("cap", "saved"), [("lambda_max", 54), ("sd_max", 54 * 16**2)])
def test_a_cap_of_0_saves_the_numbers_of_the_spread(resnet50: nn.Module, cap: str, saved: int) -> None:
    """Each layer saves one number without λ, and M² numbers without deviations of U."""
    assert TABLE_9["ffg_u"][16] - converted(resnet50, "ffg_u", 16, **{cap: 0}) == saved


@pytest.fixture(scope="module")
def dense(resnet50: nn.Module) -> dict[str, Bayesian]:
    return {"ffg_u": bayesianize(resnet50, "ffg_u", rows=64, cols=64), "ffg_w": bayesianize(resnet50, "ffg_w")}


@pytest.mark.parametrize("left", ["0.75", "0.5", "0.25"])
def test_pruned_inducing_weights_store_the_counts_of_table_10(dense: dict[str, Bayesian], left: str) -> None:
    pruned = prune(dense["ffg_u"], float(1 - Fraction(left)))
    assert stored(pruned) == TABLE_10_FFG_U[left]
    mask_bytes = sum(m.packed.nbytes for m in pruned.modules() if isinstance(m, Kept))
    assert mask_bytes == z_entries(plain(50), 64) // 8  # bits: 0.65 MB beside 4 bytes a number
    assert sum(kept_counts(pruned).values()) == Fraction(left) * z_entries(plain(50), 64)


@pytest.mark.parametrize("left", ["0.5", "0.1", "0.01", "0.001"])
def test_pruned_weights_store_the_counts_of_table_10(dense: dict[str, Bayesian], left: str) -> None:
    """At 0.1 % the table counts half a weight more than a mask can keep (see the docstring of this file)."""
    assert parameters(dense["ffg_w"]) == TABLE_10_FFG_W["1"]
    pruned = prune(dense["ffg_w"], float(1 - Fraction(left)))
    assert stored(pruned) == TABLE_10_FFG_W[left] - (left == "0.001")
    kept = [m for m in pruned.modules() if isinstance(m, Kept)]
    assert sum(m.count for m in kept) == math.floor(Fraction(left) * plain(50).weights) + 10
    mask_bytes = sum(m.packed.nbytes for m in kept)
    assert mask_bytes <= sum(-(-math.prod(m.shape) // 8) for m in kept)
    assert mask_bytes < 1.1 * 4 * sum(m.count for m in kept) or left in ("0.5", "0.1")

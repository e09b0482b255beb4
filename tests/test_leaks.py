"""The tabular protocol: test rows change no fitted bit, of a method on the data and of a method on a trajectory."""

from pathlib import Path

import numpy as np
import pytest

from bdl_pipe.artifacts import State
from bdl_pipe.data.split_rows import uci_splits
from bdl_pipe.registry import METHODS
from tests.cases import fit
from tests.preparing import table_of
from tests.resuming import same_bits

FROM_DATA = ["vbll", "vbll_bnn", "gbll", "ldgbll", "map_blr"]
FROM_TRAJECTORY = [
    name
    for name, method in METHODS.items()
    if "regression" in method.tasks
    and "student" in method.stages
    and method.stages["student"].required == {"trajectory"}
]
CHOSEN = {  # early stopping also chooses the number of epochs
    "optimiser": {"name": "adam", "lr": 0.01},
    "epochs": 8,
    "early_stopping": {"every": 1, "patience": 4},
    "extra_epochs": 4,
    "snapshots": 4,
    "variance_floor": 0.01,
}


def posteriors(values: np.ndarray, targets: str, folder: Path) -> dict[str, State]:
    data = table_of(values, targets, folder)
    trajectory = fit("sgd", "trajectory", data, **CHOSEN)
    on_it = {name: fit(name, "student", data, {"trajectory": [trajectory]}) for name in FROM_TRAJECTORY}
    return {"sgd": trajectory} | on_it | {name: fit(name, "student", data) for name in FROM_DATA}


@pytest.mark.parametrize("targets", ["standardise", "centre"])
def test_no_fitted_bit_depends_on_test_rows(targets: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = np.round(random.normal(3, 2, (60, 5)), 3)
    ((train, test),) = uci_splits(60, 1)
    wild, shifted = rows.copy(), rows.copy()
    wild[test] = 1e3 * random.normal(size=(len(test), 5))  # every test row changes
    shifted[train[0]] += 0.5  # the control: a training row changes
    base, other, seen = (posteriors(v, targets, tmp_path / str(i)) for i, v in enumerate((rows, wild, shifted)))
    assert all(same_bits(base[name], other[name]) for name in base)
    assert not any(same_bits(base[name], seen[name]) for name in base)

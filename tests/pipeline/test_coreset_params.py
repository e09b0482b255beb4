"""Coresets and protocols that do not fit together are refused when params are read, before anything is made."""

from typing import Any

import pytest

from bdl_pipe.errors import UserError
from pipeline.core.load import typed
from tests.coresets.test_bpc_methods import EXPERTS, SECTIONS
from tests.coresets.test_protocols import CHAINS
from tests.pipeline.test_params import changed
from tests.preparing import SECTION

DATA = {**SECTION, "source": {"name": "digits"}}
GOOD: dict[str, Any] = {
    "seed": 0,
    "datasets": {"digits": DATA, "other": DATA, "boston": {**DATA, "source": {"name": "boston"}}},
    "methods": {"sgd": EXPERTS, "bpc_fkl": SECTIONS["bpc_fkl"], "coreset_sgmcmc": CHAINS},
    "trajectories": {"experts": {"dataset": "digits", "method": "sgd", "seeds": 2, "input": "prepare/digits"}},
    "teachers": {},
    "coresets": {"fkl": {"dataset": "digits", "method": "bpc_fkl", "seeds": 1, "input": "trajectory/experts"}},
    "runs": {
        "run": {"dataset": "digits", "method": "coreset_sgmcmc", "setting": "s", "seeds": 3, "input": "coreset/fkl"}
    },
    "evaluate": {"calibration_bins": 15, "batch": 100, "joint_pairs": 0},
    "report": {"figures_dpi": 110},
}
BATCH = EXPERTS["network"] | {"norm": "batch"}
WRONG: dict[str, tuple[str, Any, str]] = {
    "a coreset of other data": (
        "runs.run.dataset",
        "other",
        "runs.run.input must be of the data set other, got 'coreset/fkl: digits'",
    ),
    "experts of other data": (
        "coresets.fkl.dataset",
        "other",
        "coresets.fkl.input must be of the data set other, got 'trajectory/experts: digits'",
    ),
    "real targets": (
        "runs.run.dataset",
        "boston",
        "runs.run.method must support regression (the data of boston), got 'coreset_sgmcmc'",
    ),
    "no start": (
        "trajectories.experts.override",
        {"keep_start": False},
        "coresets.fkl.input must be of a trajectory with keep_start: true, got False",
    ),
    "not every epoch": (
        "trajectories.experts.override",
        {"snapshots": 2},
        "coresets.fkl.input must be of a trajectory with a snapshot of every epoch, or every part of one "
        "(snapshots: 3), got 2",
    ),
    "too few epochs": (
        "coresets.fkl.override",
        {"start_epochs": 4},
        "coresets.fkl.start_epochs must be <= the epochs, or parts of them, of the trajectory (3), got 4",
    ),
    "experts with running statistics": (
        "trajectories.experts.override",
        {"network": BATCH},
        "coresets.fkl.input must be of a network without running statistics (norm: instance, group or none), "
        "got 'batch'",
    ),
    "chains with running statistics": (
        "methods.coreset_sgmcmc.network",
        BATCH,
        "methods.coreset_sgmcmc.network.norm must be of a network without running statistics (norm: instance, group or "
        "none), got 'batch'",
    ),
    "no coreset": ("runs.run.input", "prepare/digits", "runs.run.input must be coreset/<run>, got 'prepare/digits'"),
    "a trajectory": (
        "runs.run.input",
        "trajectory/experts",
        "runs.run.input must be coreset/<run>, got 'trajectory/experts'",
    ),
}


def test_a_coreset_and_a_protocol_that_fit_together_are_accepted() -> None:
    assert typed(GOOD).run("student", "run").sources == {"coreset": "fkl"}


@pytest.mark.parametrize("case", WRONG)
def test_an_input_that_does_not_fit_is_refused_and_its_key_is_named(case: str) -> None:
    place, value, message = WRONG[case]
    with pytest.raises(UserError) as caught:
        typed(changed(place, value, GOOD))
    assert str(caught.value) == message

"""A fit that diverges is repeated at smaller rates, with the bits of a fit that has these rates from the start."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from bdl_pipe import config, fitting
from bdl_pipe.artifacts import State, to_bytes
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import Diverged
from bdl_pipe.fitting import retried
from bdl_pipe.method import StageSpec
from bdl_pipe.networks import register_network
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from tests.cases import CONFIGS
from tests.resuming import Killed, Saving


def sgld(step: float) -> Any:
    numbers = config.merge(CONFIGS["sgmcmc", "regression"], {"sampler": {"step_size": {"value": step}}})
    return config.read(METHODS["sgmcmc"].config, numbers, "sgmcmc")


def chain(step: float, data: FitData, report: Report) -> State:
    """A chain of SGLD, which diverges at a step of .01."""
    fit = METHODS["sgmcmc"].stages["teacher"].fit_one
    (state,) = retried(lambda config, attempt: [fit(data, {}, config, rng=Seed(0), report=attempt)], sgld(step), report)
    return state


def test_a_chain_that_diverges_is_repeated_at_a_smaller_step(tiny: dict[str, FitData]) -> None:
    data = tiny["regression"]
    states = chain(0.01, data, Silent())
    share = states.config[fitting.RATE_SHARE]
    assert share in (0.3, 0.3**2, 0.3**3)
    direct = chain(0.01 * share, data, Silent())
    assert fitting.RATE_SHARE not in direct.config
    for name, tensor in direct.tensors.items():
        assert torch.equal(tensor, states.tensors[name])
    with pytest.raises(Diverged):
        chain(1e6, data, Silent())


def test_a_killed_retry_continues_with_the_same_bits(tiny: dict[str, FitData]) -> None:
    data = tiny["regression"]
    undisturbed = chain(0.01, data, whole := Saving())
    report = Saving(stop=whole.saved - 1)
    with pytest.raises(Killed):
        chain(0.01, data, report)
    last = report.load()
    assert last is not None and last.config["attempt"] >= 1
    again = Saving(last)
    assert to_bytes(chain(0.01, data, again)) == to_bytes(undisturbed)
    assert again.saved < whole.saved


def test_a_slower_config_has_every_rate_halved_and_nothing_else_changed() -> None:
    for (name, task_name), numbers in CONFIGS.items():
        whole = config.read(METHODS[name].config, numbers, name)
        first, second = (flat(config.to_mapping(c)) for c in (whole, fitting.slower(whole, 0.5)))
        changed = {key for key in first if first[key] != second[key]}
        rates = {k for k in first if k[-1] in ("lr", "label_lr", "step_size") and first[k] is not None}
        rates |= {key for key in first if "step_size" in key[:-1] and key[-1] in ("value", "a", "rate")}
        assert changed == rates, (name, task_name)
        assert all(second[key] == first[key] / 2 for key in changed)


def flat(mapping: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(mapping, dict):
        return {prefix: mapping}
    return {k: v for key, value in mapping.items() for k, v in flat(value, (*prefix, key)).items()}


def state(number: float) -> State:
    return State({"x": torch.tensor(number)}, {})


def test_each_seed_takes_its_share_of_the_inputs_and_has_its_own_address() -> None:
    stage = StageSpec(fit=lambda *a, **k: state(0), needs={"teacher": "all", "trajectory": "cyclic"})  # type: ignore[arg-type]
    fits = fitting.seeds_of(stage, "data", {"teacher": "abcdef", "trajectory": "xy"}, Seed(1), split=2, seeds=3)
    assert [fit.inputs["teacher"] for fit in fits] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert [fit.inputs["trajectory"] for fit in fits] == [["x"], ["y"], ["x"]]
    assert [fit.rng for fit in fits] == [Seed(1).fold(2, seed) for seed in range(3)]
    assert [fit.name for fit in fits] == ["2-0", "2-1", "2-2"]


def test_the_seeds_of_tables_are_fitted_together() -> None:
    class Rows:
        input_shape: tuple[int, ...]

    def many(data: Any, inputs: Any, config: Any, *, rngs: Any, report: Any) -> list[State]:
        return [state(config * len(rngs)) for _ in rngs]

    for seeds, shape, kind, sizes in (
        (12, (4,), "trajectory", [10, 2]),
        (11, (4,), "trajectory", [10, 1]),
        (2, (1, 8, 8), "trajectory", [1, 1]),  # images
        (2, (4,), "student", [1, 1]),  # posteriors may have different shapes
    ):
        one, Rows.input_shape = fitting.SeedFit("data", {kind: []}, Seed(0)), shape
        calls = fitting.grouped(StageSpec(fit_many=many), 0.5, [one] * seeds, [Rows()] * seeds)  # type: ignore[arg-type,list-item]
        assert [len(call.seeds) for call in calls] == sizes
        values = [float(fitted.tensors["x"]) for call in calls for fitted in call.states(Silent())]
        assert values == [0.5 * size for size in sizes for _ in range(size)]


def test_bins_get_their_edges_from_the_training_rows_of_each_split(tiny: dict[str, FitData]) -> None:
    """Validation rows and other splits' rows do not move an edge; splits with edges of their own are fitted apart."""
    data = tiny["regression"]
    network = {"name": "mlp", "hidden": [4], "bins": 4}
    numbers = config.merge(CONFIGS["sgd", "regression"], {"network": {**network, "frequencies": []}})
    binned = config.read(METHODS["sgd"].config, numbers, "sgd")
    placed: Any = fitting.placed(binned, data)
    source = data.search or data
    rows = source.tensors("train")[0].double().numpy()
    assert placed.network.edges[0] == pytest.approx(np.unique(np.quantile(rows[:, 0], np.linspace(0, 1, 5))))
    assert fitting.placed(placed, replace(data, search=None)) is placed
    seeds = [
        fitting.SeedFit(f"data-{split}", {}, Seed(split), f"{split}-{seed}") for split in (0, 1) for seed in (0, 1)
    ]
    for one, sizes in ((binned, [2, 2]), (placed, [4])):
        calls = fitting.grouped(METHODS["sgd"].stages["trajectory"], one, seeds, [data, data])
        assert [len(call.seeds) for call in calls] == sizes


@dataclass(frozen=True)
class Ranged:
    """A network as a plugin may have it: its trunk divides inputs by their range in the training rows."""

    name: Literal["ranged"]
    ranges: tuple[float, ...] = ()

    @property
    def needs_rows(self) -> bool:
        return not self.ranges

    def with_rows(self, rows: torch.Tensor) -> "Ranged":
        return replace(self, ranges=tuple((rows.amax(0) - rows.amin(0)).tolist()))


def test_a_network_of_a_plugin_computes_values_from_the_training_rows(
    tiny: dict[str, FitData], forgotten_plugins: None
) -> None:
    """The range comes to the trunk that a fit builds, and to the posterior's config, by the protocol alone."""

    def trunk(config: Ranged, shape: tuple[int, ...], generator: torch.Generator) -> tuple[torch.nn.Module, int]:
        scale = torch.nn.Linear(shape[0], shape[0], bias=False)
        scale.weight.data = torch.diag(1 / torch.tensor(config.ranges))
        return scale, shape[0]

    register_network(Ranged, trunk)
    data = tiny["regression"]
    numbers = {**CONFIGS["sgd", "regression"], "network": {"name": "ranged"}}
    stage, sgd = METHODS["sgd"].stages["trajectory"], config.read(METHODS["sgd"].config, numbers, "sgd")
    (fits,) = fitting.grouped(stage, sgd, fitting.seeds_of(stage, data, {}, Seed(0)), [data])
    (fitted,) = fits.states(Silent())
    rows = data.tensors("train")[0]
    spec: Any = fitted.config["spec"]
    assert spec["network"]["ranges"] == pytest.approx((rows.amax(0) - rows.amin(0)).tolist())

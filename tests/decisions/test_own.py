"""Decisions in a loop of one's own: answers, the same bits after a file, and bad input."""

from pathlib import Path

import numpy as np
import pytest

from bdl_decisions import Arms, Maximise, Pool
from bdl_pipe.errors import ArtifactError, ConfigError, DataError, UserError
from bdl_pipe.registry import METHODS
from bdl_pipe.yaml_files import read_yaml


def test_a_search_ends_near_the_maximum_and_goes_on_from_a_file(tmp_path: Path) -> None:
    """Five uniform choices in place of the GP's reach more than −.6 with a probability of .05."""

    def value(row: np.ndarray) -> float:
        return -((row[0] - 3.0) ** 2) - 100 * (row[1] - 0.02) ** 2

    search = Maximise([(0.0, 10.0), (-1.0, 1.0)], "gp")
    for count in (10, 1, 1, 1, 1, 1):
        rows = search.ask(count)
        assert rows.shape == (count, 2) and (rows[:, 0] >= 0).all() and (np.abs(rows[:, 1]) <= 1).all()
        search.tell(rows, [value(row) for row in rows])
    best, reached = search.best
    assert value(best) == reached == search.values.max() > -0.6 > search.values[:10].max()
    search.save(tmp_path / "search.json")
    again = search.ask(2)
    assert again.shape == (2, 2) and (Maximise.load(tmp_path / "search.json").ask(2) == again).all()
    with pytest.raises(ArtifactError, match=r"must be a file of Arms.save, got one of Maximise$"):
        Arms.load(tmp_path / "search.json")


@pytest.mark.parametrize("updates", [True, False])
def test_a_bandit_finds_the_arm_of_each_context_and_goes_on_from_a_file(updates: bool, tmp_path: Path) -> None:
    """Arm 1 pays for contexts above 0, arm 0 below; uniform pulls are right in 15 of 20 with a probability of .02."""
    random, bandit = np.random.default_rng(0), Arms(2, "linear", updates=updates)

    def play(bandit: Arms, contexts: np.ndarray) -> list[int]:
        pulled = []
        for context in contexts:
            pulled.append(bandit.ask(context))
            bandit.tell(context, pulled[-1], float(context[0]) if pulled[-1] else 0.0)
        return pulled

    play(bandit, random.normal(size=(60, 2)))
    bandit.save(tmp_path / "bandit.json")
    contexts = random.normal(size=(20, 2))
    pulled = play(bandit, contexts)
    assert (np.array(pulled) == (contexts[:, 0] > 0)).sum() >= 15
    assert play(Arms.load(tmp_path / "bandit.json"), contexts) == pulled


def test_a_pool_asks_for_rows_without_labels_and_goes_on_from_a_file(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(80, 3))
    labels = np.where(rows[:, 0] > 0, "yes", "no")
    pool, seen = Pool(rows, "d_vbll", pace=0.02, candidates=30), list[int]()
    for count in (20, 5, 5):
        numbers = pool.ask(count)
        assert len(set(numbers.tolist()) - set(seen)) == count
        seen += numbers.tolist()
        pool.tell(numbers, labels[numbers])
    assert list(pool.labels.items()) == [(number, labels[number]) for number in seen]
    pool.save(tmp_path / "pool.json")
    assert (Pool.load(tmp_path / "pool.json").ask(5) == pool.ask(5)).all()


def test_the_params_file_of_the_reports_page_has_the_settings_of_a_search() -> None:
    """A params file names each number that a stage reads, so that a change of a default runs no decision again."""
    agents = read_yaml(Path("params/explore.yaml"))["decisions"]["first-<search>"]["agents"]
    few_rows = {name: method.few_rows for name, method in METHODS.items() if method.few_rows}
    assert all(Maximise([(0.0, 1.0)], name)._settings["override"] == few_rows[name] for name in few_rows)
    assert {agent["method"]: agent["override"] for agent in agents.values() if "method" in agent} == few_rows


def _labelled(labels: str, rule: str) -> Pool:
    """Return a pool of 30 rows, of which ten have a label, whose posterior has one draw."""
    rows = np.random.default_rng(0).normal(size=(30, 2))
    pool = Pool(rows, "deterministic", rule, pace=0.01, start=10)
    pool.tell(range(10), [labels[number % len(labels)] for number in range(10)])
    return pool


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (np.random.default_rng(0).random((10, 2)), np.full(10, 3.0)),
        (np.full((10, 2), 0.5), np.arange(10.0)),
        (np.random.default_rng(0).random((10, 2)), np.arange(10) == 7),  # only a validation row differs
    ],
)
def test_a_search_goes_on_where_there_is_nothing_to_fit(rows: np.ndarray, values: np.ndarray) -> None:
    search = Maximise([(0.0, 1.0)] * 2, "vbll", pace=0.01, override={})
    search.tell(rows, values)
    assert np.unique(search.ask(3), axis=0).shape == (3, 2)


def test_bandits_and_pools_go_on_with_equal_rewards_and_one_class() -> None:
    bandit = Arms(2, "linear", initial=5)
    for number in range(10):
        bandit.tell([float(number)], bandit.ask([float(number)]), 1.0)
    assert bandit.ask([0.5]) in (0, 1) and len(set(_labelled("a", "bald").ask(5).tolist()) - set(range(10))) == 5


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (lambda: Maximise([(1.0, 0.0)]), ConfigError, r"^bounds must be pairs \(least, largest\) of finite numbers"),
        (lambda: Maximise([(0.0, 1.0)], "deterministicc"), ValueError, "deterministic"),
        (lambda: Maximise([(0.0, 1.0)], rule="bald"), ConfigError, "^rule must be one for numbers"),
        (lambda: Maximise([(0.0, 1.0)]).best, DataError, "^best: must come after the first tell"),
        (
            lambda: Maximise([(0.0, 1.0)]).tell([[2.0]], [1.0]),
            DataError,
            r"^rows: must be \[row, 1\] inside the bounds",
        ),
        (lambda: Maximise([(0.0, 1.0)]).tell([[0.5]], [np.nan]), DataError, "give a failed evaluation the worst value"),
        (lambda: Arms(1), ConfigError, "^arms must be >= 2, got 1"),
        (lambda: Arms(2).tell([0.0], 2, 1.0), DataError, "^a pull must be an arm of 0 … 1 and finite numbers, got 2"),
        (lambda: Arms(2).tell([0.0], 0, None), DataError, "^a pull must be .* finite numbers, got 0, nan"),
        (lambda: Arms(2).tell([0.0], 0, "much"), DataError, "^reward: must be numbers, got 'much'"),
        (lambda: Maximise([(0.0, 1.0)]).tell([[0.5], [0.1, 0.2]], [1.0, 2.0]), DataError, "^rows: must be numbers"),
        (lambda: Pool(np.zeros((30, 2))).tell([3], [np.nan]), DataError, "none of them missing, got nan$"),
        (
            lambda: Pool(np.zeros((30, 2))).tell([3], [["a"]]),
            DataError,
            r"^labels: must be texts or numbers, .*\['a'\]",
        ),
        (lambda: _labelled("ab", "bald").ask(3), UserError, "^deterministic: must give draws of class probabilities"),
        (lambda: _labelled("ab", "bald").ask(22), ConfigError, "^count must be 1 … 20, the rows that are left, got 22"),
        (lambda: Pool(np.zeros((30, 2))).ask(31), ConfigError, "^count must be 1 … 30, the rows that are left, got 31"),
        (lambda: Pool(np.zeros((30, 2))).tell([3, 3], "ab"), DataError, "without a label, got 3$"),
        (lambda: Pool(np.zeros((5, 2))), ConfigError, "^start must be"),
        (lambda: Pool.load("none.json"), ArtifactError, "must be a file of Pool.save"),
    ],
)
def test_bad_input_is_one_line(bad: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        bad()  # type: ignore[operator]

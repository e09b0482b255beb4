"""Tasks of decisions, and decisions in a loop of one's own: questions, observations, scores, files; bad settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bdl_decisions import RULES, Arms, DecisionConfig, Maximise, Pool, play
from bdl_decisions.active import ActiveLearning
from bdl_decisions.agents import Agent
from bdl_decisions.bandits import Bandit, RowsBandit
from bdl_decisions.beliefs import PosteriorBelief
from bdl_decisions.functions import FUNCTIONS
from bdl_decisions.optimisation import Optimisation, Search, TableOptimisation
from bdl_pipe.config import read
from bdl_pipe.errors import ArtifactError, ConfigError, DataError, UserError
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from bdl_pipe.yaml_files import read_yaml
from tests.case_files import cases_of, loaded


class Knows:
    """A belief that knows the labels' probabilities, whatever it was fitted to."""

    learns = False

    def __init__(self, sure: float) -> None:
        self._sure = sure

    def log_probs(self, rows: np.ndarray, rng: Seed) -> torch.Tensor:
        right = torch.from_numpy((rows[:, 0] > 0).astype(np.int64))
        probs = torch.full((len(rows), 2), 1 - self._sure, dtype=torch.float64)
        return probs.scatter(1, right[:, None], self._sure).log()

    def values(self, *_: object) -> torch.Tensor:
        raise NotImplementedError

    parts = means = class_draws = learn = drawn = values


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_its_published_minimum(name: str) -> None:
    function = FUNCTIONS[name]
    assert function.value(np.array(function.at)) == pytest.approx(function.minimum, abs=2e-5)
    rows = Seed(0).numpy().random((20_000, function.columns))
    assert function.value(rows).min() >= function.minimum
    near = np.clip(np.array(function.at) + 0.01 * rows[:5000], 0, 1)
    assert function.value(near).min() >= function.minimum - 2e-5


def test_a_search_observes_the_rows_it_chooses_and_its_regret_never_rises() -> None:
    task = Optimisation("branin", start=4, evaluations=12, batch=5, candidates=50)
    problem = task.problem(Seed(0))
    assert problem.refits == (0, 5, 10)
    curves = play(problem, lambda *_: None, RULES["uniform"], Seed(1))
    rows, values = problem.known()
    assert rows.shape == (16, 2) and values == pytest.approx(-FUNCTIONS["branin"].value(rows))
    regret = [value for _, value in curves["regret"]]
    assert len(regret) == 13 and sorted(regret, reverse=True) == regret
    assert regret[-1] == pytest.approx(-FUNCTIONS["branin"].minimum - values.max())
    assert curves["mean_regret"][0][1] == pytest.approx(np.mean(regret[1:]))


def table(path: Path, rows: int, target: str = "y") -> dict[str, object]:
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 2))
    labels = [["no", "yes"][int(v > 0)] for v in x[:, 0]] if target == "label" else [f"{v:.6f}" for v in x[:, 0] ** 2]
    text = "\n".join([f"a,b,{target}", *(f"{a:.6f},{b:.6f},{t}" for (a, b), t in zip(x, labels, strict=True))])
    path.write_text(text + "\n")
    task = "classification" if target == "label" else "regression"
    return {"name": "table", "path": str(path), "target": [target], "task": task}


def test_a_table_is_searched_without_repetition_to_its_optimum(tmp_path: Path) -> None:
    task = read(TableOptimisation, {"source": table(tmp_path / "t.csv", 30), "start": 5, "evaluations": 25}, "task")
    problem = task.problem(Seed(0))
    curves = play(problem, lambda *_: None, RULES["uniform"], Seed(1))
    rows, _ = problem.known()
    assert len(np.unique(rows, axis=0)) == 30 and rows.min() == 0 and rows.max() == 1
    assert curves["regret"][-1][1] == 0
    with pytest.raises(ConfigError, match=r"^evaluations must leave 30 rows with start, got 31$"):
        read(TableOptimisation, {"source": table(tmp_path / "t.csv", 30), "evaluations": 21}, "task").problem(Seed(0))


def test_each_label_is_asked_for_once_and_scores_use_held_out_rows(tmp_path: Path) -> None:
    sizes = {"start": 3, "labels": 8, "batch": 4, "candidates": 20, "wanted": 5, "held": 40}
    task = read(ActiveLearning, {"source": table(tmp_path / "t.csv", 120, "label"), **sizes}, "task")
    problem = task.problem(Seed(0))
    assert problem.refits == (0, 4, 8) and problem.classes == ("no", "yes")
    start = problem.known()[1]
    assert np.bincount(start).tolist() == [3, 3]
    curves = play(problem, lambda *_: Knows(0.9), RULES["entropy"], Seed(1))
    rows, labels = problem.known()
    assert len(np.unique(rows, axis=0)) == 14 and (labels == (rows[:, 0] > 0)).all()
    held = {row.tobytes() for row in problem._rows[problem._held]}
    assert len(held) == 40 and not held & {row.tobytes() for row in rows}
    assert curves["accuracy"] == [(6, 1.0), (10, 1.0), (14, 1.0)]
    assert [value for _, value in curves["nll"]] == pytest.approx([-np.log(0.9)] * 3)


def test_a_table_becomes_a_bandit_of_labels_or_of_mushrooms(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv", 200, "label")
    problem = read(RowsBandit, {"source": source, "rounds": 200}, "task").problem(Seed(0))
    assert (problem._means.sum(1) == 1).all() and problem._rows.mean(0) == pytest.approx([0, 0], abs=1e-9)
    source |= {"columns": {"a": "number", "b": "number"}}
    task = read(RowsBandit, {"source": source, "rounds": 200, "game": "mushroom", "edible": "yes"}, "task")
    problem = task.problem(Seed(0))
    good = problem._rows[:, 0] > problem._rows[:, 0][problem._means[:, 1] < 0].max()
    rewards = problem._rewards * 15
    assert (rewards[:, 0] == 0).all() and rewards[good, 1] == pytest.approx(5)
    bad = rewards[~good, 1]
    assert sorted(np.unique(bad.round())) == [-35, 5]
    assert abs((bad > 0).mean() - 0.5) < 4 * np.sqrt(0.25 / len(bad))  # false alarm 6e-5
    with pytest.raises(ConfigError, match=r"^edible must be one of no, yes, got 'e'$"):
        read(RowsBandit, {"source": source, "rounds": 200, "game": "mushroom"}, "task").problem(Seed(0))


SOUND = {"task": {"name": "wheel", "delta": 0.5}, "agents": {"a": {"rule": "uniform"}}}
REFUSED = loaded(Path(__file__).with_name("refused.yaml"))


@pytest.mark.parametrize(("key", "value", "message"), [(key, *row) for key, rows in REFUSED.items() for row in rows])
def test_a_bad_entry_is_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(DecisionConfig, SOUND | {key: value}, "d")


@pytest.mark.parametrize("rule", ["thompson", "expected_improvement"])
def test_a_search_begins_on_a_plateau_and_leaves_it(rule: str) -> None:
    """180 of 200 rows have one value: without the others there is nothing to fit, and choices are uniform."""
    random = np.random.default_rng(0)
    grid = random.random((200, 2))
    far = np.argsort(grid[:, 0])[-20:]
    values = np.zeros(200)
    values[far] = grid[far, 0]
    values_of = {row.tobytes(): value for row, value in zip(grid, values, strict=True)}
    plateau = grid[np.argsort(grid[:, 0])[:10]]

    def value(x: np.ndarray) -> np.ndarray:
        return np.array([values_of[row.tobytes()] for row in np.ascontiguousarray(x)])

    fitted = []

    def fit(rows: np.ndarray, targets: np.ndarray, rng: Seed) -> PosteriorBelief | None:
        fitted.append(Agent(rule, "linear").fit(rows, targets, (), rng))
        return fitted[-1]

    problem = Search(value, plateau, 1.0, rounds=60, batch=6, candidates=100, rng=Seed(0), grid=grid)
    play(problem, fit, RULES[rule], Seed(0))
    assert len(problem.known()[0]) == 70 and 0 < len(fitted) < 10


def test_rewards_that_leave_nothing_to_decide_and_missing_rewards_or_contexts_are_refused() -> None:
    contexts, rewards = np.random.default_rng(0).normal(size=(60, 2)), np.eye(3)[np.arange(60) % 3]
    missing = np.arange(180).reshape(60, 3) == 100
    for bad, message in (
        ((contexts, np.zeros((60, 3))), "rewards must have a mean that differs between arms, got 0.0"),
        ((contexts, np.full((60, 3), 2.5)), "rewards must have a mean that differs between arms, got 2.5"),
        ((contexts, np.where(missing, np.nan, 1.0)), r"rewards must be finite, got \[nan\]"),
        ((np.where(missing[:, :2], np.nan, contexts), rewards), r"contexts must be finite, got \[nan\]"),
    ):
        with pytest.raises(ConfigError, match=message):
            Bandit(bad[0], bad[1], bad[1], 1, 2.0)


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("first", [True, False])
def test_a_failed_evaluation_is_refused_in_its_own_round(bad: float, first: bool) -> None:
    """NaN is numpy's largest value, so that it would be the best; the fit's message named a column of its own."""
    calls = []

    def value(x: np.ndarray) -> np.ndarray:
        calls.append(len(x))
        values = -np.square(x).sum(1)
        values[0] = bad if first == (len(calls) == 1) else values[0]
        return values

    start = np.random.default_rng(0).random((10, 2))
    problem = Search(value, start, 0.0, rounds=8, batch=4, candidates=20, rng=Seed(0))
    with pytest.raises(DataError, match=rf"problem: its values must be finite, got {bad} in round 0; give a failed"):
        play(problem, lambda *_: None, RULES["uniform"], Seed(0))
    assert len(calls) == (1 if first else 2)


cases = cases_of(__file__)


def test_a_search_ends_near_the_maximum_and_goes_on_from_a_file(tmp_path: Path) -> None:
    """Five uniform choices in place of the GP's reach more than −1 with a probability of .08, twice with .006."""

    def value(row: np.ndarray) -> float:
        return -((row[0] - 3.0) ** 2) - 100 * (row[1] - 0.02) ** 2

    for seed in range(2):
        search = Maximise([(0.0, 10.0), (-1.0, 1.0)], "gp", seed=seed)
        for count in (10, 1, 1, 1, 1, 1):
            rows = search.ask(count)
            assert rows.shape == (count, 2) and (rows[:, 0] >= 0).all() and (np.abs(rows[:, 1]) <= 1).all()
            search.tell(rows, [value(row) for row in rows])
        best, reached = search.best
        assert value(best) == reached == search.values.max() > -1 > search.values[:10].max()
    search.save(tmp_path / "search.json")
    again = search.ask(2)
    assert again.shape == (2, 2) and (Maximise.load(tmp_path / "search.json").ask(2) == again).all()
    with pytest.raises(ArtifactError, match=r"must be a file of Arms.save, got one of Maximise$"):
        Arms.load(tmp_path / "search.json")


def test_a_search_follows_a_rule_that_proposes_no_points() -> None:
    """The value is the input, so that the three chosen points are above .95.

    Three uniform points are above it with a probability of .0001.
    """
    rows = np.linspace(0.0, 0.9, 30)[:, None]
    search, oracle = (Maximise([(0.0, 1.0)], "linear", rule) for rule in ("marginal_thompson", "oracle"))
    for told in (search, oracle):
        told.tell(rows, rows[:, 0])
    assert search.ask(3).min() > 0.95
    with pytest.raises(UserError, match=r"^rule: must fit the task \(oracle is for bandits\), got oracle$"):
        oracle.ask()


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
    with pytest.raises(UserError, match=r"without a label, got 81$"):
        pool.tell([number := int(pool.ask()[0]), 81], ["yes", "no"])
    assert number not in pool.labels, "no label of a refused call is kept"
    (tmp_path / "pool.json").write_text('{"kind": "Pool", "settings": {}, "dtype": "<f8"}')
    with pytest.raises(ArtifactError, match=r"pool.json: must be a file of Pool.save \(KeyError\('rows'\)\)$"):
        Pool.load(tmp_path / "pool.json")


def test_the_params_file_of_the_reports_page_has_the_settings_of_a_search() -> None:
    """A params file names each number that a stage reads, so that a change of a default runs no decision again."""
    agents = read_yaml(Path("params/explore.yaml"))["decisions"]["first-<search>"]["agents"]
    few_rows = {name: method.few_rows for name, method in METHODS.items() if method.few_rows}
    assert all(few_rows[name].items() <= Maximise([(0.0, 1.0)], name)._settings.items() for name in few_rows)
    shown = {agent["method"]: agent for agent in agents.values() if "method" in agent}
    assert {name: {key: agent[key] for key in few_rows[name]} for name, agent in shown.items()} == few_rows


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


PULL = {"contexts": [[0.0, 1.0]], "pulled": [0], "rewards": [1.0]}
ASKED: dict[str, Callable[..., object]] = {
    "search": Maximise,
    "the best": lambda: Maximise([(0.0, 1.0)]).best,
    "tell a search": lambda *given: Maximise([(0.0, 1.0)]).tell(*given),
    "ask a search": lambda count: Maximise([(0.0, 1.0)]).ask(count),
    "arms": Arms,
    "ask arms of two numbers": lambda context: Arms._from(PULL, {"arms": 2}).ask(context),
    "tell two arms": lambda *given: Arms(2).tell(*given),
    "pool": lambda rows: Pool(np.zeros((rows, 2))),
    "load a pool": Pool.load,
    "tell a pool": lambda *given: Pool(np.zeros((30, 2))).tell(*given),
    "ask a pool": lambda count: Pool(np.zeros((30, 2))).ask(count),
    "ask a pool of ten labels": lambda count: _labelled("ab", "bald").ask(count),
}


@cases("refused", "asked given error message")
def test_bad_input_is_one_line(asked: str, given: list[Any] | dict[str, Any], error: str, message: str) -> None:
    with pytest.raises((UserError, ValueError), match=message) as caught:
        ASKED[asked](**given) if isinstance(given, dict) else ASKED[asked](*given)
    assert error in [kind.__name__ for kind in type(caught.value).__mro__]

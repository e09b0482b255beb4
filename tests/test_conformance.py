"""Every registered method, in every stage, on every task, through the protocol on tiny data."""

import dataclasses
import functools
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet

from bdl_pipe.artifacts import State, read_state, write_state
from bdl_pipe.collapsed.mixture import CollapsedMixture
from bdl_pipe.config import read
from bdl_pipe.data.examples import Examples
from bdl_pipe.errors import ConfigError
from bdl_pipe.evaluation import EvaluateConfig, score_clean
from bdl_pipe.joint_predictive import JointCategorical
from bdl_pipe.method import Method, fan_in
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.metrics.written import writer
from bdl_pipe.posterior import Predictor, joint
from bdl_pipe.predictive import Categorical, Gaussian, Predictive
from bdl_pipe.programs import CLOSE, trace
from bdl_pipe.progress import Report
from bdl_pipe.registry import METHODS, POSTERIORS, posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.student_t import StudentT
from tests.baselines.cases import table
from tests.cases import CASES, CONFIGS, STUDENTS, Case, fit
from tests.conftest import make_tiny_images, make_tiny_table
from tests.refusals import refusal, refused
from tests.resuming import Killed, Watched, same_bits
from tests.threads import at_once

pytestmark = pytest.mark.slow  # every method is fitted several times
ROOT = 7


def parametrize(cases: list[Case], soak: Collection[Case] = ()) -> pytest.MarkDecorator:
    """Parametrize over cases; the cases of a method run in one process, which makes each of them once."""

    def marked(case: Case) -> ParameterSet:
        marks = [pytest.mark.xdist_group(f"{__name__}.{case.method}"), *[pytest.mark.soak] * (case in soak)]
        return pytest.param(case, marks=marks, id=str(case))

    return pytest.mark.parametrize("case", list(map(marked, cases)))


all_cases = parametrize(CASES)
STUDENT = [case for case in CASES if case.kind == "student"]
students = parametrize(STUDENT)
# Seeds, checkpoints, threads, students and programs of both tasks go through the same code: the first task of each
# stage in make test, both in make soak.
SECOND = [
    case
    for number, case in enumerate(CASES)
    if any(case == dataclasses.replace(other, task=case.task) for other in CASES[:number])
]


def data_of(task: str):
    return make_tiny_images(120) if task == "classification" else make_tiny_table()


def config_of(case: Case) -> object:
    method = METHODS[case.method]
    return read(method.config, case.section, f"methods.{case.method}")


@functools.cache
def inputs_of(case: Case) -> dict[str, list[State]]:
    needed = {kind: case.stage.needs[kind] for kind in case.sources}  # optional inputs have tests of their own
    return {
        kind: [made(case.upstream(kind), member) for member in fan_in(takes, 0, 2)] for kind, takes in needed.items()
    }


def process() -> dict[str, object]:
    """Return the state of the process that others read; Python's generator is left out: the checks of types draw."""
    return {
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "NumPy's generator": str(np.random.get_state()),  # noqa: NPY002
        "the default type": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "warnings": list(map(str, warnings.filters)),
    }


def changed_since(before: dict[str, object]) -> list[str]:
    return [name for name, value in process().items() if value != before[name]]


@functools.cache
def undisturbed(case: Case, member: int) -> tuple[State, Watched, list[str]]:
    """Return a fit that is not killed, its report, and what it has changed in the process."""
    recorder, before = Watched(), process()
    return make(case, Seed(ROOT).fold("member", member), recorder), recorder, changed_since(before)


def made(case: Case, member: int = 0) -> State:
    return undisturbed(case, member)[0]


def make(case: Case, rng: Seed, report: Report) -> State:
    return case.stage.fit_one(data_of(case.task), inputs_of(case), config_of(case), rng=rng, report=report)


def draws(predictive: Predictive) -> list[torch.Tensor]:
    if isinstance(predictive, Categorical):
        return [predictive.draw_log_probs]
    if isinstance(predictive, StudentT):
        return [predictive.draw_mean, predictive.squared_scale]
    assert isinstance(predictive, Gaussian | CollapsedMixture)
    return [predictive.draw_mean, predictive.draw_variance]


@parametrize([case for case in CASES if case.stage.random], soak=SECOND)
def test_different_seeds_give_different_bits(case: Case) -> None:
    one, other = made(case), made(case, 1)
    assert one.tensors.keys() == other.tensors.keys()
    assert any(not torch.equal(v, other.tensors[k]) for k, v in one.tensors.items())


@parametrize([case for case in CASES if not case.stage.random])
def test_a_fit_that_draws_nothing_does_not_depend_on_the_seed(case: Case) -> None:
    assert same_bits(made(case), made(case, 1))


@all_cases
def test_a_fit_and_a_prediction_change_nothing_in_the_process(case: Case) -> None:
    """Other threads read it: layers that torch initialised drew from the generator of the user's code and of masks."""
    assert undisturbed(case, 0)[1].seen, "a fit reports its steps"
    assert undisturbed(case, 0)[2] == []
    if case.kind == "student":
        before = process()
        posterior_of(made(case)).predict(data_of(case.task).tensors("validation")[0], rng=Seed(1))
        assert changed_since(before) == []


@parametrize(CASES, soak=SECOND)
def test_equal_seeds_give_equal_bits_however_often_a_fit_is_killed(case: Case) -> None:
    """A fit that offers checkpoints is killed at the first one, at a randomly drawn one and at the last one."""
    asked, rng = undisturbed(case, 0)[1].asked, Seed(ROOT).fold("member", 0)
    assert asked > 0 or not case.stage.random or case.stage.in_driver, (
        "a fit that draws and takes time must be resumable"
    )
    stops = {1, int(np.random.default_rng(0).integers(1, asked + 1)), asked} if asked else set()
    kept, done = None, 0
    for stop in sorted(stops):
        report = Watched(stop - done, kept=kept)
        with pytest.raises(Killed):
            make(case, rng, report)
        kept, done = report.kept, stop
    rest = Watched(kept=kept)
    assert same_bits(make(case, rng, rest), made(case)), f"killed at {stops}"
    assert rest.asked <= asked - done, "the resumed fit started over"


# Images are fitted one at a time.
TABLES = [c for c in CASES if c.stage.fit_many is not None and c.task == "regression"]


@parametrize(TABLES)
def test_members_fitted_together_equal_members_fitted_alone(case: Case) -> None:
    rngs = [Seed(ROOT).fold("member", m) for m in range(2)]
    config, inputs = config_of(case), inputs_of(case)
    assert case.stage.fit_many is not None
    data = [table(m) for m in range(2)]
    both = case.stage.fit_many(data, [inputs] * 2, config, rngs=rngs, report=Watched())
    for state, rows, rng in zip(both, data, rngs, strict=True):
        alone = case.stage.fit_one(rows, inputs, config, rng=rng, report=Watched())
        assert state.config.keys() == alone.config.keys() and state.config["spec"] == alone.config["spec"]
        for name, value in alone.tensors.items():
            torch.testing.assert_close(state.tensors[name], value, atol=1e-4, rtol=1e-3)


@parametrize([case for case in CASES if case.kind != "student"])  # the next test has the others
def test_a_state_reads_back_from_its_file_with_the_same_bits(case: Case, tmp_path: Path) -> None:
    write_state(tmp_path / "0-0", made(case))
    assert same_bits(read_state(tmp_path / "0-0"), made(case))


@students
def test_a_posterior_read_from_its_file_predicts_the_same_bits(case: Case, tmp_path: Path) -> None:
    inputs, _ = data_of(case.task).tensors("validation")
    before = posterior_of(made(case)).predict(inputs, rng=Seed(1))
    write_state(tmp_path / "0-0", made(case))
    posterior = posterior_of(read_state(tmp_path / "0-0"))
    after = posterior.predict(inputs, rng=Seed(1))
    assert all(torch.equal(a, b) for a, b in zip(draws(before), draws(after), strict=True))
    assert same_bits(posterior.state(), made(case))
    assert posterior.state().config["posterior"] in POSTERIORS


@students
def test_predictives_are_distributions(case: Case) -> None:
    data = data_of(case.task)
    inputs, targets = data.tensors("validation")
    predictive = posterior_of(made(case)).predict(inputs, rng=Seed(1))
    assert predictive.mean.shape == predictive.variance.shape == (len(inputs), data.outputs)
    assert (predictive.variance >= 0).all()
    assert predictive.log_prob(targets).isfinite().all()
    if case.task == "classification":
        assert isinstance(predictive, Categorical)
        total = predictive.log_probs.double().exp().sum(-1)
        torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)
    else:
        assert (predictive.variance > 0).all()


@students
def test_a_joint_is_a_distribution_over_the_targets_of_a_group(case: Case) -> None:
    """A group has two rows and the first row again; over all labels of the three the probabilities sum to one."""
    data = data_of(case.task)
    inputs, targets = data.tensors("validation")
    groups, places = inputs[:6].unflatten(0, (3, 2)), torch.tensor([[0, 1, 0]] * 3)
    distribution = joint(posterior_of(made(case)), groups, rng=Seed(1), draws=40, places=places)
    again = joint(posterior_of(made(case)), groups, rng=Seed(1), draws=40, places=places)
    own_labels = targets[:6].unflatten(0, (3, 2))[:, [0, 1, 0]]
    assert torch.equal(distribution.log_prob(own_labels), again.log_prob(own_labels)), "equal seeds give equal bits"
    assert (
        distribution.log_prob(own_labels).isfinite().all() and distribution.log_prob(own_labels).dtype == torch.float64
    )
    assert not distribution.is_product or distribution.gap(own_labels).abs().max() < 1e-12
    torch.testing.assert_close(
        distribution.chain_log_prob(own_labels)[:, 0], distribution.row_log_prob(own_labels)[:, 0]
    )
    if case.task == "classification":
        labels = [torch.tensor([combination] * 3) for combination in product(range(data.outputs), repeat=3)]
        total = sum(distribution.log_prob(combination).exp() for combination in labels)
        torch.testing.assert_close(total, torch.ones(3).double(), atol=1e-6, rtol=0)
        assert isinstance(distribution, JointCategorical)
        alike = sum(distribution.log_prob(torch.full((3, 3), k)).exp() for k in range(data.outputs))
        torch.testing.assert_close(distribution.same_class(), alike)


@students
def test_the_prediction_for_a_row_does_not_depend_on_its_neighbours(case: Case) -> None:
    """Rows are predicted in another order, and alone: no draw may depend on a row's place in its batch.

    So a draw is one function for all rows and batches, which a joint by draws needs.
    """
    posterior, (inputs, _) = posterior_of(made(case)), data_of(case.task).tensors("validation")
    whole = draws(posterior.predict(inputs, rng=Seed(1)))
    turned = draws(posterior.predict(inputs.flip(0), rng=Seed(1)))
    alone = [draws(posterior.predict(row[None], rng=Seed(1))) for row in inputs[:3]]
    for together, back, *single in zip(whole, turned, *alone, strict=True):
        torch.testing.assert_close(back.flip(1), together, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(torch.cat(single, 1), together[:, :3], atol=1e-4, rtol=1e-4)


@parametrize(STUDENT, soak=SECOND)
def test_answers_to_eight_threads_equal_the_answers_alone(case: Case) -> None:
    """Threads change places every 10 µs. With one network for all calls 34 cases were seen to differ."""
    posterior, (inputs, targets) = posterior_of(made(case)), data_of(case.task).tensors("validation")

    def answer(number: int) -> list[torch.Tensor]:
        rows = slice(number % 4, number % 4 + 4)
        several = joint(posterior, inputs[None, rows], rng=Seed(1), draws=4)
        return [*draws(posterior.predict(inputs[rows], rng=Seed(1))), several.log_prob(targets[None, rows])]

    alone = [answer(number) for number in range(4)]
    for number, answers in enumerate(at_once(answer, range(8))):
        assert all(map(torch.equal, answers, alone[number % 4])), f"answer {number} differs"


@parametrize([c for c in CASES if c.kind == "student" and c.method in ("deterministic", "ciber_last", "tabm")])
def test_predictions_for_raw_rows_are_in_original_units(case: Case) -> None:
    data = data_of(case.task)
    fitted = Predictor(posterior_of(made(case)), data.transform, data.classes)
    predictive = fitted.predict(data.validation.inputs, rng=Seed(1))
    inner = fitted.posterior.predict(data.tensors("validation")[0], rng=Seed(1))
    expected = inner.mean
    if data.transform.scale is not None:
        expected = inner.mean * data.transform.scale.float() + data.transform.shift.float()
    torch.testing.assert_close(predictive.mean.to(expected), expected, atol=1e-5, rtol=1e-5)


@parametrize([case for case in CASES if case.kind == "student" and case.task == "regression"])
def test_the_noise_has_one_variance_or_a_variance_for_each_input(case: Case) -> None:
    """The score ``noise_ratio`` of a posterior agrees with its state: the likelihood, or a layer of noise."""
    data = data_of(case.task)
    fitted = Predictor(posterior_of(made(case)), data.transform)
    rows = Examples(data.validation.inputs[:6], data.validation.targets[:6])
    scores = score_clean(fitted, rows, EvaluateConfig(15, 7, 0), Seed(1)).metrics
    noise = writer(metric_of("noise_ratio"))(scores["noise_ratio"][0])
    about = str(made(case).config) + str([*made(case).tensors])
    of_each = any(word in about for word in ("gaussian_head", "student_head", "each input", "noise_head"))
    assert noise == ("each input" if of_each else "one")


@parametrize(STUDENT, soak=SECOND)
def test_every_posterior_can_be_distilled(case: Case) -> None:
    """Into the plain student and, if its draws are functions, into a student with heads."""
    data, inputs = data_of(case.task), {"student": [made(case)]}
    rows = data.tensors("validation")[0]
    predictive = posterior_of(made(case)).predict(rows, rng=Seed(1))
    functions = isinstance(predictive, Categorical | Gaussian | StudentT) and len(draws(predictive)[0]) > 1
    for student in ({"name": "plain"}, *[STUDENTS["heads"]["student"]] * functions):
        state = fit("dark_knowledge", "student", data, inputs, steps=2, student=student)
        assert posterior_of(state).predict(rows, rng=Seed(1)).mean.isfinite().all()


def test_the_declarations_of_a_method_agree() -> None:
    """A fit that ends at an optimum does not depend on its seed; what starts at a model or predicts has a posterior."""
    for method in METHODS.values():
        student = method.stages.get("student")
        assert not method.optimal or (student is not None and not student.random and not student.needs)
        assert student is not None or not (method.program or method.rival or method.bayesian or method.from_model)
        assert not (method.rival and method.bayesian)


def test_unknown_keys_are_refused() -> None:
    for (name, _), section in CONFIGS.items():
        with pytest.raises(ConfigError, match=rf"^methods\.{name}\.no_such_key is not a known key"):
            read(METHODS[name].config, section | {"no_such_key": 1}, f"methods.{name}")


RULES = {key: rule for rule, keys in refused("numbers").items() for key in keys.split()}


def whole(config: Any) -> Any:
    """Return a config as a section with all of its keys, also those with a default."""
    if dataclasses.is_dataclass(config):
        return {field.name: whole(getattr(config, field.name)) for field in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {key: whole(value) for key, value in config.items()}
    return list(map(whole, config)) if isinstance(config, tuple) else config


def numbers(section: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each number in nested sections."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from numbers(value, (*path, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield *path, key


def with_number(section: Mapping[str, Any], path: tuple[str, ...], number: int) -> dict[str, Any]:
    """Return the sections with another number at ``path``."""
    key, *rest = path
    return {**section, key: with_number(section[key], tuple(rest), number) if rest else number}


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda m: m.name)
def test_each_number_of_a_config_is_refused_by_the_rule_of_its_key(method: Method) -> None:
    """Each number of each method's smallest config, and each default: -1 is refused, 0, 1 and 2 as the rule says."""
    wrong = []
    for task in method.tasks:
        section = whole(read(method.config, CONFIGS[method.name, task], method.name))
        for path in numbers(section):
            messages = [refusal(read, method.config, with_number(section, path, n), method.name) for n in (-1, 0, 1, 2)]
            if (method.name, path[-1]) == ("ensemble_u", "sd_max"):
                continue  # its weights have no deviations
            key, _, rule = messages[0].partition(", got ")[0].partition(" must be ")
            rule = re.sub(r" \([\d.e-]+\)", "", re.sub(r"\[0, -?\d+\), the", "[0, n), the", rule))
            if path[-2:] == ("thinning", "steps"):  # it is in the rule of the burn-in
                right = key.endswith("thinning.burn_in") and messages[1] != "accepted"
            else:
                places = (f"{method.name}.{path[-1]}", ".".join(path[-2:]), path[-1])
                right = rule == next((RULES[place] for place in places if place in RULES), "")
                right &= key.endswith(path[-1]) and messages[0].startswith("ConfigError")
                by_rule = rule.startswith((">= 0", "in [0", "0 or")) or ", 0 or" in rule
                right &= (messages[1] == "accepted") == by_rule
                if rule.startswith(("> 1", "in (0, 1", "in [0, 1")):
                    right &= (messages[2] == "accepted") == rule.startswith("in (0, 1]")
                    right &= not (rule.startswith("in") and messages[3] == "accepted")
            wrong += [] if right else [(path, messages)]
    assert wrong == []


@pytest.mark.parametrize("method", [method for method in METHODS.values() if method.search], ids=lambda m: m.name)
def test_every_key_that_a_search_varies_is_a_number_of_the_config(method: Method) -> None:
    for key, (low, high, scale) in method.search.items():
        assert low < high
        assert scale == "linear" or low > 0
        value = read(method.config, CONFIGS[method.name, method.tasks[0]], method.name)
        for part in key.split("."):
            value = getattr(value, part)
        assert isinstance(value, int if scale == "integer" else (int, float))


def test_fan_in_takes_members_by_number_in_turn_or_all() -> None:
    assert [list(fan_in("one_to_one", member, 3)) for member in range(3)] == [[0], [1], [2]]
    assert [list(fan_in("cyclic", member, 3)) for member in range(5)] == [[0], [1], [2], [0], [1]]
    assert [list(fan_in("cyclic", member, 1)) for member in range(3)] == [[0]] * 3
    assert list(fan_in("all", 0, 3)) == [0, 1, 2]
    assert [list(fan_in("all", member, 6, 2)) for member in range(2)] == [[0, 1, 2], [3, 4, 5]]
    assert [list(fan_in("earlier", member, 2)) for member in range(3)] == [[0], [1], [0]]
    for method in ("vbpc", "random_coreset"):
        assert METHODS[method].stages["student"].needs == {"coreset": "cyclic"}


def draws_logits(case: Case) -> bool:
    return case.section.get("layer", {}).get("predictive") == "sampled"


SWAGS = ("ensemble", "swa", "multi_swag")  # their posterior is that of swag
programs = [
    case for case in STUDENT if METHODS[case.method].program and not (case.variant in STUDENTS or draws_logits(case))
]


@pytest.mark.slow
@parametrize(programs, soak=[c for c in programs if c in SECOND or c.method in SWAGS])
def test_a_posterior_that_predicts_in_one_pass_exports_to_an_equal_program(case: Case) -> None:
    data = data_of(case.task)
    fitted, rows = Predictor(posterior_of(made(case)), data.transform, data.classes), data.train.inputs[:40]
    program = trace(fitted, torch.from_numpy(rows), rng=Seed(0))
    assert program.error <= CLOSE
    for count in (1, 7):  # batches of sizes that differ from the traced batch
        (answers, *_), meant = (
            program.traced.module()(torch.from_numpy(rows[:count])),
            fitted.predict(rows, rng=Seed(0)),
        )
        torch.testing.assert_close(answers, meant.mean[:count], rtol=1e-4, atol=1e-5)

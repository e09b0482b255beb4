"""params.yaml: each mistake in it gives one clear line."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from bdl_pipe.errors import UserError
from bdl_pipe.yaml_files import read_yaml
from pipeline.core import overlays
from pipeline.core.load import load, unwatched
from pipeline.core.load import typed as typed_params
from pipeline.core.model import Params
from tests.pipeline.fake_work import REGISTRY
from tests.preparing import SECTION
from tests.test_yaml_files import UNREADABLE, damaged

GOOD: dict[str, Any] = {
    "seed": 0,
    "datasets": {"boston": {**SECTION, "source": {"name": "boston"}, "splits": 2}},
    "methods": {"walk": {"steps": 5}, "only_classes": {}},
    "trajectories": {"b-walk": {"dataset": "boston", "method": "walk", "seeds": 2, "input": "prepare/boston"}},
    "teachers": {},
    "coresets": {},
    "runs": {
        "b-run": {"dataset": "boston", "method": "walk", "setting": "small", "seeds": 2, "input": "trajectory/b-walk"}
    },
    "evaluate": {"calibration_bins": 15, "batch": 100, "joint_pairs": 0},
    "report": {"figures_dpi": 110},
}


def read(tmp_path: Path, raw: Any) -> Params:
    path = tmp_path / "params.yaml"
    path.write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw))
    return load(path, REGISTRY)


def changed(place: str, value: Any, good: dict[str, Any] = GOOD) -> dict[str, Any]:
    """Return good params with the value at ``a.b.c`` set, or removed where it is ``...``."""
    raw = copy.deepcopy(good)
    *above, last = place.split(".")
    section = raw
    for key in above:
        section = section[key]
    if value is ...:
        del section[last]
    else:
        section[last] = value
    return raw


def test_good_params_are_typed(tmp_path: Path) -> None:
    found = read(tmp_path, changed("runs.b-run.override", {"scale": 2}))
    row = found.run("student", "b-run")
    assert (row.config.steps, row.config.scale) == (5, 2.0)
    assert row.sources == {"trajectory": "b-walk"} and found.run("trajectory", "b-walk").sources == {}
    assert found.run("trajectory", "b-walk").config.scale == 1.0
    assert found.datasets["boston"].splits == 2


WRONG = {
    "unknown section": ("modells", {}, "modells is not a known section"),
    "missing section": ("evaluate", ..., "evaluate is missing"),
    "mistyped seed": ("seed", "zero", "seed must be a whole number >= 0, got 'zero'"),
    "true is no seed": ("seed", True, "seed must be a whole number >= 0, got True"),
    "out of range": ("methods.walk.steps", 0, "methods.walk.steps must be > 0, got 0"),
    "mistyped": ("methods.walk.steps", "many", "methods.walk.steps must be a whole number, got 'many'"),
    "unknown key": ("methods.walk.stepz", 1, "methods.walk.stepz is not a known key (did you mean steps?)"),
    "missing key": ("methods.walk", {}, "methods.walk.steps is missing"),
    "unknown method": ("methods.wolk", {}, "methods.wolk is not a method (did you mean walk?)"),
    "row of unknown method": (
        "runs.b-run.method",
        "wolk",
        "runs.b-run.method must be a method (did you mean walk?), got 'wolk'",
    ),
    "wrong override": ("runs.b-run.override", {"steps": -1}, "methods.walk.steps must be > 0, got -1"),
    "no seeds": ("runs.b-run.seeds", 0, "runs.b-run.seeds must be >= 1, got 0"),
    "more members than its input": (
        "runs.b-run.seeds",
        3,
        "runs.b-run.seeds must be <= 2, the seeds of its input, got 3",
    ),
    "unknown data set": (
        "runs.b-run.dataset",
        "bosten",
        "runs.b-run.dataset must be a data set (did you mean boston?)",
    ),
    "unknown input": (
        "runs.b-run.input",
        "trajectory/b-wolk",
        "runs.b-run.input must be a run that is listed earlier (did you mean b-walk?)",
    ),
    "input of a wrong kind": (
        "runs.b-run.input",
        "prepare/boston",
        "runs.b-run.input must be trajectory/<run>, got 'prepare/boston'",
    ),
    "other data": ("trajectories.b-walk.input", "prepare/digits", "trajectories.b-walk.input must be prepare/boston"),
    "no such stage": (
        "teachers.t",
        {"dataset": "boston", "method": "only_classes", "seeds": 1, "input": "prepare/boston"},
        "teachers.t.method must support regression (the data of boston), got 'only_classes'",
    ),
    "a dot in a key": ("trajectories", {"b.walk": {}}, "trajectories.b.walk must have only letters"),
    "setting above": ("trajectories.b-walk.setting", "small", "trajectories.b-walk.setting is for runs only"),
    **{
        f"setting {text!r}": ("runs.b-run.setting", text, "runs.b-run.setting must be words of letters, digits and ")
        for text in ("a|b", "[red]a[/red]", "a\nb", "a  b", " a", "a ", "<b>", "`a`", "*a*")
    },
    "no setting": ("runs.b-run.setting", ..., "runs.b-run.setting is missing"),
    "unknown ood": ("datasets.boston.ood", ["mist"], "datasets.boston.ood"),
    "unknown transfer": (
        "datasets.images",
        {**GOOD["datasets"]["boston"], "source": {"name": "mnist5k"}, "transfer": ["fashion_mnist", "mist"]},
        "datasets.images.transfer[1] must name a data set",
    ),
    "transfer to itself": (
        "datasets.images",
        {**GOOD["datasets"]["boston"], "source": {"name": "mnist5k"}, "transfer": ["mnist5k"]},
        "datasets.images.transfer[0] must name another set than the fitted one, got 'mnist5k'",
    ),
    "transfer of a table": (
        "datasets.boston.transfer",
        ["digits"],
        "datasets.boston.transfer must be empty for a table",
    ),
    "unknown source": ("datasets.boston.source", {"name": "bosten"}, "datasets.boston.source.name must be one of"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_in_params_is_one_line_that_names_its_key(tmp_path: Path, name: str) -> None:
    place, value, message = WRONG[name]
    with pytest.raises(UserError) as caught:
        read(tmp_path, changed(place, value))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def several(**bundle: Any) -> dict[str, Any]:
    """GOOD with a coreset of two members, and a run of two members made from the coreset and the trajectory."""
    raw = copy.deepcopy(GOOD)
    raw["methods"] |= {"pair": {"steps": 1}, "may": {"steps": 1}}
    row = {"dataset": "boston", "method": "pair", "seeds": 2, "input": "trajectory/b-walk"}
    raw["coresets"]["b-pair"] = row
    raw["inputs"] = {"both": {"trajectory": "trajectory/b-walk", "coreset": "coreset/b-pair"} | bundle}
    raw["runs"]["b-pair"] = {**row, "setting": "small", "seeds": 2, "input": "inputs/both"}
    return raw


def test_a_run_may_have_several_inputs(tmp_path: Path) -> None:
    found = read(tmp_path, several())
    row = found.run("student", "b-pair")
    assert row.sources == {"trajectory": "b-walk", "coreset": "b-pair"}
    assert found.inputs == {"both": {"trajectory": "trajectory/b-walk", "coreset": "coreset/b-pair"}}
    assert [(r.kind, r.key) for r in found.lineage(row)] == [
        ("trajectory", "b-walk"),
        ("coreset", "b-pair"),
        ("student", "b-pair"),
    ]
    assert read(tmp_path, GOOD).inputs == {}
    for given in ("prepare/boston", "trajectory/b-walk", "coreset/b-pair", "inputs/both"):
        raw = several()
        raw["runs"]["b-pair"] |= {"method": "may", "seeds": 2, "input": given}
        kinds = {} if given == "prepare/boston" else {given.split("/")[0]: given.split("/")[1]}
        expected = row.sources if given == "inputs/both" else kinds
        assert read(tmp_path, raw).run("student", "b-pair").sources == expected


OTHER_DATA = {  # A second data set, from which the coreset b-pair is made.
    "datasets": GOOD["datasets"] | {"other": GOOD["datasets"]["boston"]},
    "coresets": {"b-pair": {"dataset": "other", "method": "walk", "seeds": 2, "input": "prepare/other"}},
}
WRONG_BUNDLES = {
    "one alone": ({"inputs": {"both": {"coreset": "coreset/b-pair"}}}, "inputs.both must be two artifacts or more"),
    "a list": ({"inputs": {"both": ["coreset/b-pair", "trajectory/b-walk"]}}, "inputs.both must be two artifacts"),
    "no kind": (several(corset="coreset/b-pair"), "inputs.both.corset must be a stage kind (did you mean coreset?)"),
    "data": (several(prepare="prepare/boston"), "inputs.both.prepare must be a stage kind"),
    "another kind": (several(coreset="trajectory/b-walk"), "inputs.both.coreset must be coreset/<run>, got 'traj"),
    "no text": (several(coreset=3), "inputs.both.coreset must be coreset/<run>, got 3"),
    "no row": (
        {**several(teacher="teacher/b-wolk"), "runs": {}},
        "inputs.both.teacher must be a run of teachers (known: none), got 'teacher/b-wolk'",
    ),
    "more than it reads": (
        {**several(teacher="teacher/t"), "teachers": {"t": GOOD["trajectories"]["b-walk"]}},
        "runs.b-pair.input must be inputs/<key> with trajectory and coreset, got 'inputs/both: coreset, teacher, tr",
    ),
    "no such key": (
        {"runs": {**several()["runs"], "b-pair": {**several()["runs"]["b-pair"], "input": "inputs/bath"}}},
        "runs.b-pair.input must be a key of inputs (did you mean both?), got 'bath'",
    ),
    "one where it reads two": (
        {"runs": {**several()["runs"], "b-pair": {**several()["runs"]["b-pair"], "input": "coreset/b-pair"}}},
        "runs.b-pair.input must be inputs/<key> with trajectory and coreset, got 'coreset/b-pair'",
    ),
    "two where it reads one": (
        {"runs": {"b-run": {**GOOD["runs"]["b-run"], "input": "inputs/both"}}},
        "runs.b-run.input must be trajectory/<run>, got 'inputs/both'",
    ),
    "a kind that it does not read": (
        {"inputs": {"both": {"trajectory": "trajectory/b-walk", "student": "student/b-pair"}}},
        "runs.b-pair.input must be inputs/<key> with trajectory and coreset",
    ),
    "members of each": (
        {"runs": {"b-pair": {**several()["runs"]["b-pair"], "method": "may", "seeds": 3}}},
        "runs.b-pair.seeds must be <= 2, the seeds of its input, got 3",
    ),
    "shares of members": (
        {"runs": {"b-pair": {**several()["runs"]["b-pair"], "seeds": 3}}},
        "runs.b-pair.seeds must divide 2, the seeds of its input, got 3",
    ),
    "other data": (
        OTHER_DATA,
        "runs.b-pair.input must be of the data set boston, got 'coreset/b-pair: other'",
    ),
    "other data, unused": (
        OTHER_DATA | {"runs": {}},
        "inputs.both must be of one data set, got {'coreset/b-pair': 'other', 'trajectory/b-walk': 'boston'}",
    ),
}


@pytest.mark.parametrize("name", WRONG_BUNDLES)
def test_a_mistake_in_several_inputs_is_one_line_that_names_its_key(tmp_path: Path, name: str) -> None:
    change, message = WRONG_BUNDLES[name]
    with pytest.raises(UserError) as caught:
        read(tmp_path, several() | change)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["M=64 (75%)", "ResNet-50 (0.1%)", "width 128 with batch norm", "ipc10", "β_D 1e-3"])
def test_a_setting_of_words_numbers_and_symbols_is_accepted(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, changed("runs.b-run.setting", text)).run("student", "b-run").spec.setting == text


def test_yaml_mistakes_name_the_line(tmp_path: Path) -> None:
    for text, line in (("seed: 0\nseed: 1\n", 2), ("a: [1\nb: 2\n", 2), ("a: 1\n\tb: 2\n", 2)):
        with pytest.raises(UserError, match=rf"params\.yaml:{line}: is not YAML"):
            read(tmp_path, text)
    with pytest.raises(UserError, match="must be sections"):
        read(tmp_path, "- 1\n")
    with pytest.raises(UserError, match="there is no such file"):
        load(tmp_path / "absent.yaml", REGISTRY)


@pytest.mark.parametrize("section", [name for name in GOOD if name != "seed"])
@pytest.mark.parametrize("value", [None, 1, True, "none", [1], [], 0.5], ids=repr)
def test_a_section_of_a_wrong_type_is_named(tmp_path: Path, section: str, value: Any) -> None:
    """Null is an empty section; here only teachers, coresets and runs may be empty."""
    if value is None and section in ("teachers", "coresets", "runs"):
        read(tmp_path, changed(section, value))
        return
    with pytest.raises(UserError) as caught:
        read(tmp_path, changed(section, value))
    said = str(caught.value)
    where = {"datasets": "trajectories.b-walk.dataset", "trajectories": "runs.b-run.input"}
    where |= {"methods": "trajectories.b-walk.method must be a section of methods (known: none)"}
    assert said.startswith(where.get(section, section) if value is None else f"{section} must be a section"), said


def test_an_error_shows_a_long_value_on_one_short_line(tmp_path: Path) -> None:
    for place, value in (("seed", "x" * 9000), ("seed", list(range(9000))), ("seed\nx" * 500, 1), ("runs.a\nb", 1)):
        with pytest.raises(UserError) as caught:
            read(tmp_path, changed(place, value))
        assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


def test_nested_yaml_aliases_are_refused_without_being_expanded(tmp_path: Path) -> None:
    """Thirty lines that stand for 9^30 values."""
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))]
    with pytest.raises(UserError, match="a0 is not a known section"):
        read(tmp_path, "\n".join(lines))
    with pytest.raises(UserError, match="seed must be a whole number"):
        laughs = "\n".join(["x: ", *(f"  {line}" for line in lines), "seed: *a29"])
        path = tmp_path / "laughs.yaml"
        path.write_text(laughs)
        typed_params({**GOOD, "seed": read_yaml(path)["seed"]}, REGISTRY)


def test_an_unreadable_overlay_is_named_and_params_stay_unchanged(tmp_path: Path) -> None:
    target = damaged(tmp_path / "params.yaml", yaml.safe_dump(GOOD).encode())
    for case, (make, message) in UNREADABLE.items():
        overlay = tmp_path / case / "overlay.yaml"
        overlay.parent.mkdir()
        with pytest.raises(UserError) as caught:
            overlays.apply(make(overlay), target)
        assert message in str(caught.value) and "overlay.yaml" in str(caught.value)
    assert target.read_text() == yaml.safe_dump(GOOD)


def test_a_source_file_outside_data_is_named_as_unwatched(tmp_path: Path) -> None:
    table = {"name": "table", "path": "elsewhere/a.csv", "target": ["y"], "task": "regression"}
    (line,) = unwatched(read(tmp_path, changed("datasets.boston.source", table)))
    assert "elsewhere/a.csv is outside data/" in line
    table["path"] = "data/a.csv"
    assert unwatched(read(tmp_path, changed("datasets.boston.source", table))) == []


def test_data_sets_that_another_data_set_reads_are_named_as_unwatched(tmp_path: Path) -> None:
    """A named set without an entry in ``datasets`` has no source that could change."""
    raw = copy.deepcopy(GOOD)
    images = GOOD["datasets"]["boston"] | {"normalise": "train", "splits": 1, "validation": 10}
    raw["datasets"]["clothes"] = images | {"source": {"name": "fashion_mnist"}, "ood": ["digits", "noise", "figures"]}
    raw["datasets"]["figures"] = images | {"source": {"name": "mnist5k"}}
    (line,) = unwatched(read(tmp_path, raw))
    rule = "datasets.clothes.ood: DVC does not notice a change of datasets.figures.source; after a change, run "
    rule += "dvc repro -f prepare@clothes"
    assert line == rule
    raw["datasets"]["figures"]["transfer"] = ["digits"]
    assert unwatched(read(tmp_path, raw)) == [rule]
    raw["datasets"]["digits"] = images | {"source": {"name": "digits"}}
    assert len(unwatched(read(tmp_path, raw))) == 3

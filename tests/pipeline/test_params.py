"""params.yaml: each mistake in it gives one clear line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from bdl_pipe.data.catalog import OPTIONS
from bdl_pipe.errors import UserError
from bdl_pipe.yaml_files import read_yaml
from pipeline.core import overlays
from pipeline.core.load import load, unwatched
from pipeline.core.load import typed as typed_params
from pipeline.core.model import Params
from pipeline.plan.sources import data_digest
from tests.pipeline.fake_work import REGISTRY
from tests.pipeline.params_cases import REFUSED, changed, params, refusal
from tests.test_yaml_files import UNREADABLE, damaged

GOOD = params("good")
BOSTON = GOOD["datasets"]["boston"]
IMAGES = BOSTON | {"normalise": "train", "splits": 1, "validation": 10}
NAMES = ("good", "several", "coresets", "pruned", "imitated", "increments", "with experts")
MISTAKES = [(name, change, message) for name in NAMES for change, message in REFUSED[name]]


def read(folder: Path, raw: Any, registry: Any = REGISTRY) -> Params:
    path = folder / "params.yaml"
    path.write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw, sort_keys=False))
    return load(path, registry)


def boston(folder: Path, **keys: Any) -> Params:
    """Read good params whose data set has other keys."""
    return read(folder, changed(GOOD, {f"datasets.boston.{key}": value for key, value in keys.items()}))


def test_good_params_are_typed(tmp_path: Path) -> None:
    typed = read(tmp_path, changed(GOOD, {"runs.b-run.override": {"scale": 2}}))
    run = typed.run("student", "b-run")
    assert (run.config.steps, run.config.scale) == (5, 2.0)
    assert run.sources == {"trajectory": "b-walk"} and typed.run("trajectory", "b-walk").sources == {}
    assert typed.run("trajectory", "b-walk").config.scale == 1.0
    assert typed.datasets["boston"].splits == 2


@pytest.mark.parametrize("name", NAMES)
def test_params_without_a_mistake_are_accepted(name: str, tmp_path: Path) -> None:
    assert read(tmp_path, params(name), REGISTRY if name in NAMES[:2] else None).of("student")


@pytest.mark.parametrize(("name", "change", "message"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_in_params_is_one_line_that_names_its_key(
    tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    raw, registry = changed(params(name), change), REGISTRY if name in NAMES[:2] else None
    refused = refusal(lambda: read(tmp_path, raw, registry))
    assert refused == message or (message.endswith("…") and refused.startswith(message[:-1])), refused


def test_a_run_may_have_several_inputs(tmp_path: Path) -> None:
    typed = read(tmp_path, params("several"))
    run, both = typed.run("student", "b-pair"), {"trajectory": "b-walk", "coreset": "b-pair"}
    assert run.sources == both
    assert typed.inputs == {"both": {"trajectory": "trajectory/b-walk", "coreset": "coreset/b-pair"}}
    lineage = [("trajectory", "b-walk"), ("coreset", "b-pair"), ("student", "b-pair")]
    assert [(r.kind, r.key) for r in typed.lineage(run)] == lineage
    assert read(tmp_path, GOOD).inputs == {}
    for name, sources in {
        "prepare/boston": {},
        "inputs/both": both,
        **{f"{k}/{v}": {k: v} for k, v in both.items()},
    }.items():
        raw = changed(params("several"), {"runs.b-pair.method": "may", "runs.b-pair.input": name})
        assert read(tmp_path, raw).run("student", "b-pair").sources == sources


@pytest.mark.parametrize("text", ["M=64 (75%)", "ResNet-50 (0.1%)", "width 128 with batch norm", "ipc10", "β_D 1e-3"])
def test_a_setting_of_words_numbers_and_symbols_is_accepted(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, changed(GOOD, {"runs.b-run.setting": text})).run("student", "b-run").spec.setting == text


def test_yaml_mistakes_name_the_line(tmp_path: Path) -> None:
    for text, line in (("seed: 0\nseed: 1\n", 2), ("a: [1\nb: 2\n", 2), ("a: 1\n\tb: 2\n", 2)):
        with pytest.raises(UserError, match=rf"params\.yaml:{line}: is not YAML"):
            read(tmp_path, text)
    with pytest.raises(UserError, match="must be sections"):
        read(tmp_path, "- 1\n")
    with pytest.raises(UserError, match="there is no such file"):
        load(tmp_path / "absent.yaml", REGISTRY)


@pytest.mark.parametrize("section", [name for name in GOOD if name != "seed"])
def test_a_section_of_a_wrong_type_is_named(tmp_path: Path, section: str) -> None:
    """Null is an empty section, and only teachers, coresets and runs may be empty here: refused.yaml has the others."""
    for value in (1, True, "none", [1], [], 0.5):
        message = refusal(lambda value=value: read(tmp_path, changed(GOOD, {section: value})))
        assert message.startswith(f"{section} must be a section"), (value, message)
    if section in ("teachers", "coresets", "runs"):
        read(tmp_path, changed(GOOD, {section: None}))


def test_an_error_shows_a_long_value_on_one_short_line(tmp_path: Path) -> None:
    for place, value in (("seed", "x" * 9000), ("seed", list(range(9000))), ("seed\nx" * 500, 1), ("runs.a\nb", 1)):
        assert len(refusal(lambda change={place: value}: read(tmp_path, changed(GOOD, change)))) < 500


def test_nested_yaml_aliases_are_refused_without_being_expanded(tmp_path: Path) -> None:
    """Thirty lines that stand for 9^30 values."""
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))]
    with pytest.raises(UserError, match="a0 is not a known section"):
        read(tmp_path, "\n".join(lines))
    path = tmp_path / "laughs.yaml"
    path.write_text("\n".join(["x: ", *(f"  {line}" for line in lines), "seed: *a29"]))
    with pytest.raises(UserError, match="seed must be a whole number"):
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
    (line,) = unwatched(boston(tmp_path, source=table))
    assert line.endswith("elsewhere/a.csv is outside data/, so a change in it goes unnoticed by a plain dvc repro")
    assert unwatched(boston(tmp_path, source=table | {"path": "data/a.csv"})) == []


def test_a_data_set_that_reads_another_one_changes_with_the_others_source(tmp_path: Path) -> None:
    raw = params("good")
    raw["datasets"]["clothes"] = IMAGES | {"source": {"name": "fashion_mnist"}, "ood": ["noise", "figures"]}
    raw["datasets"]["figures"] = IMAGES | {"source": {"name": "mnist5k"}}
    before = read(tmp_path, raw)
    raw["datasets"]["figures"]["source"] = {"name": "digits"}
    assert data_digest("clothes", before) != data_digest("clothes", read(tmp_path, raw)) and unwatched(before) == []


@dataclass(frozen=True)
class Mine:
    path: str
    name: str = "mine"
    kind: ClassVar[str] = "table"
    task: ClassVar[str] = "regression"

    def files(self) -> tuple[Path, ...]:
        return (Path(self.path),)


@pytest.mark.parametrize("name", ["table", "uci", "mine"])
def test_the_digest_of_a_data_set_depends_on_the_users_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("x,y\n1,2\n")
    source: dict[str, Any] = {"name": name}
    if name == "mine":  # a source that a plugin has registered
        monkeypatch.setitem(OPTIONS._values, name, Mine)
        source |= {"path": str(rows)}
    else:
        source |= {"path": str(rows), "target": ["y"]} | ({"set": "yacht"} if name == "uci" else {"task": "regression"})
    typed = boston(tmp_path, source=source)
    assert typed.datasets["boston"].task == "regression"
    assert f"{rows} is outside data/" in " ".join(unwatched(typed))
    before = data_digest("boston", typed)
    assert data_digest("boston", typed) == before
    rows.write_text("x,y\n1,3\n")
    assert data_digest("boston", typed) != before


def test_the_digest_depends_on_no_key_of_a_transfer_set_but_its_source(tmp_path: Path) -> None:
    def digest(**change: Any) -> str:
        mine = IMAGES | {"source": {"name": "mnist5k"}, "transfer": ["other"]}
        datasets = {"boston": BOSTON, "mine": mine, "other": IMAGES | {"source": {"name": "digits"}} | change}
        return data_digest("mine", read(tmp_path, GOOD | {"datasets": datasets}))

    before = digest()
    assert digest(validation=7) == before
    assert digest(source={"name": "svhn"}) != before

"""Damaged params: they are typed consistently, or the error names a section or the file."""

import copy
import json
import math
import random
from pathlib import Path
from typing import Any, Final

import pytest

from bdl_pipe import config
from bdl_pipe.errors import brief
from bdl_pipe.registry import METHODS
from bdl_pipe.yaml_files import read_yaml
from pipeline.core.load import typed as typed_params
from pipeline.core.load import unwatched
from pipeline.core.model import SECTIONS as SECTIONS_params
from pipeline.core.params_files import read_params
from tests.case_files import sections_of
from tests.end_to_end.conftest import PARAMS

from .judge import Case, cases, judge
from .test_data import wounded

ROOT: Final = Path(__file__).parents[2]
SECTIONS: Final = ("seed", "datasets", "methods", *SECTIONS_params.values(), "evaluate", "report")
ODD: Final[list[Any]] = [
    *(None, True, False, 0, 1, -1, 2, 3.7, 0.0, -0.5, 1.5, math.nan, math.inf, -math.inf, 1e300, -1e-300, 10**9, 2**62),
    *("", " ", "none", "null", "1", "1e-3", "é", "a\nb", "\x1b[31m", "x" * 5000, "a|b", "[bold]x[/]", "../..", "日本"),
    *([], [1], [None], ["a", 2], [[[]]], {}, {"name": "x"}, {"name": None}, {"name": []}, {"a": {"b": {}}}, {1: 2}),
    *({"": 1}, {None: 1}, {"a\nb" * 200: 1}, ("a",), b"\xff", list(range(3000))),
]


def whole() -> list[dict[str, Any]]:
    """params.yaml, the whole comparison with each overlay, and the complete params files of the papers."""
    alone = read_yaml(ROOT / "params.yaml")
    base = config.merge(alone, read_params(ROOT / "params/comparison.yaml"))
    read = [read_params(path) for part in ("*.yaml", "paper/*.yaml") for path in (ROOT / "params").glob(part)]
    return [dict(alone), *(dict(raw) if {*SECTIONS} <= raw.keys() else config.merge(base, raw) for raw in read)]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values below ``node``."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [p for key, child in children for p in ((*path, key), *places(child, (*path, key)))]


def at(node: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        node = node[key]
    return node


def mutate(raw: dict[str, Any], rng: random.Random) -> str:
    """Change one place of ``raw``; describe the change."""
    section = rng.choice([key for key in raw if key in SECTIONS] or list(raw))
    below = places(raw[section], (section,))
    path = rng.choice(below) if below and rng.random() < 0.93 else (section,)
    parent, last = at(raw, path[:-1]), path[-1]
    damage = rng.choice(
        ["odd", "odd", "delete", "swap", "rename", "number", "number", "number", "add", "string", "copy"]
    )
    if damage == "delete":
        del parent[last]
    elif damage == "swap":
        other = rng.choice(below or [path])
        parent[last] = copy.deepcopy(at(raw, other))
    elif damage == "rename" and isinstance(parent, dict):
        parent[rng.choice([f"{last}x", f"{last}\n", "", 7, None, True, "é", "x" * 999])] = parent.pop(last)
    elif damage == "number" and type(parent[last]) in (int, float):
        parent[last] = rng.choice(
            [lambda v: -v, lambda v: 0 * v, lambda v: v * 10**6, lambda v: 2 * v, lambda v: v + 1, float, str]
        )(parent[last])
    elif damage == "add" and isinstance(parent, dict):
        parent[rng.choice(["name", "extra", "seeds", "a b", "a.b", ("t",)])] = rng.choice(ODD)
    elif damage == "string" and isinstance(parent[last], str):
        text = parent[last]
        at_, more = rng.randrange(len(text) + 1), rng.choice(["/", "\n", "x", "", "é", "/../", "\0"])
        parent[last] = text[:at_] + more + text[at_ + (more == "") :]
    elif damage == "copy" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[last]))
    else:
        damage, parent[last] = "odd", copy.deepcopy(rng.choice(ODD))
    return f"{damage} at {'.'.join(map(str, path))}"[:300]


def check(raw: Any) -> None:
    """Check that params can be typed, are equal when they are written and read again, and can be stored as JSON."""
    typed = typed_params(raw)
    unwatched(typed)
    json.dumps(typed.raw, sort_keys=True)
    assert type(typed.seed) is int and typed.seed >= 0
    for row in typed.runs.values():
        mapping = config.to_mapping(row.config)
        json.dumps(mapping, allow_nan=False)
        assert config.read(type(row.config), mapping, "again") == row.config
        assert row.spec.seeds >= 1 and row.spec.dataset in typed.datasets and row.method.name in METHODS
        assert all((kind, key) in typed.runs for kind, key in row.sources.items())
    for dataset in typed.datasets.values():
        mapping = config.to_mapping(dataset)
        assert config.read(type(dataset), json.loads(json.dumps(mapping, allow_nan=False)), "again") == dataset


@pytest.mark.slow
def test_mutated_params_are_read_consistently_or_refused() -> None:
    bases = whole()
    for base in bases:
        check(base)

    def make(rng: random.Random, number: int) -> Case:
        raw = copy.deepcopy(rng.choice(bases))
        about = [mutate(raw, rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        keys = {brief(key) for key in raw} | {*SECTIONS}
        return Case("; ".join(about), lambda: check(raw), keys - {""} or {" "})

    judge("params", cases(250), make)


WORDS: Final = list(map(eval, sections_of(__file__)["words"]))


def damage(text: str, rng: random.Random) -> tuple[bytes, str]:
    """The text with one damage, as bytes, and a description of the damage."""
    lines = text.splitlines(keepends=True)
    i, damage = (
        rng.randrange(len(lines)),
        rng.choice(["word", "word", "word", "double", "indent", "bytes", "bytes", "code"]),
    )
    if damage == "word":
        spot, word = rng.randrange(len(text) + 1), rng.choice(WORDS)
        return (text[:spot] + word + text[spot:]).encode(), f"{word[:20]!r} at {spot}"
    if damage == "double":
        return "".join([*lines[: i + 1], *lines[i:]]).encode(), f"line {i + 1} twice"
    if damage == "indent":
        lines[i] = rng.choice([" ", "\t", "   "]) + lines[i] if rng.random() < 0.5 else lines[i].lstrip()
        return "".join(lines).encode(), f"line {i + 1} moved"
    if damage == "bytes":
        return wounded(text.encode(), rng)
    encoding = rng.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp500"])
    return text.encode(encoding), encoding


def test_a_damaged_params_file_is_read_consistently_or_refused(tmp_path: Path) -> None:
    text, path = PARAMS, tmp_path / "params.yaml"

    def make(rng: random.Random, number: int) -> Case:
        blob, about = damage(text, rng)

        def work() -> None:
            path.write_bytes(blob)
            raw = read_yaml(path)
            names.update(brief(key) for key in raw)
            check(raw)

        names = {str(path), *SECTIONS}
        return Case(about, work, names)

    judge("params file", cases(200), make)

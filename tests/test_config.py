"""Every rule of the params reader, each with its exact message."""

from dataclasses import dataclass, field
from typing import Any, Literal

from bdl_pipe.config import LATER, merge, read, to_mapping
from bdl_pipe.errors import require
from tests.refusals import refusal, refused


@dataclass(frozen=True)
class Adam:
    name: Literal["adam"]
    rate: float

    def __post_init__(self) -> None:
        require(self.rate > 0, "rate", "must be > 0", self.rate)


@dataclass(frozen=True)
class Sgd:
    name: Literal["sgd"]
    momentum: float = 0.0


@dataclass(frozen=True)
class Inner:
    widths: tuple[int, ...] = (1, 2)
    clip: float | None = None


@dataclass(frozen=True)
class Outer:
    steps: int
    rate: float
    label: str = "x"
    flip: bool = False
    shape: Literal["flat", "deep"] = "flat"
    inner: Inner = Inner()
    rule: Adam | Sgd = Adam("adam", 1.0)
    share: int | str = 1
    extra: dict[str, float] = field(default_factory=dict)
    anything: Any = None


GOOD = {"steps": 3, "rate": 0.5}


def test_a_config_has_the_given_values_and_defaults_for_the_other_keys() -> None:
    config = read(Outer, GOOD | {"inner": {"widths": [4], "clip": 1}, "rule": {"name": "sgd"}, "extra": {"a": 1}}, "m")
    assert config == Outer(3, 0.5, inner=Inner((4,), 1.0), rule=Sgd("sgd"), extra={"a": 1.0})
    assert isinstance(config.inner.clip, float)
    assert isinstance(config.extra["a"], float)
    assert [read(Outer, GOOD | {"share": share}, "m").share for share in ("all", 7)] == ["all", 7]


def test_to_mapping_is_the_inverse_of_read() -> None:
    config = Outer(3, 0.5, inner=Inner((4, 5), 2.0), rule=Sgd("sgd", 0.9), extra={"a": 1.0})
    assert read(Outer, to_mapping(config), "m") == config
    assert to_mapping(config)["inner"] == {"widths": [4, 5], "clip": 2.0}


@dataclass(frozen=True)
class Newer:
    steps: int
    rest: int = 0
    late: Inner | None = field(default=None, metadata=LATER)
    floor: float = field(default=0.5, metadata=LATER)


@dataclass(frozen=True)
class Holder:
    inner: Newer
    more: dict[str, Newer] = field(default_factory=dict)


def test_a_later_key_is_written_only_where_it_differs_from_its_default() -> None:
    assert to_mapping(Newer(3)) == {"steps": 3, "rest": 0}
    late = {"widths": [1, 2], "clip": None}
    assert to_mapping(Newer(3, late=Inner(), floor=0.0)) == {"steps": 3, "rest": 0, "late": late, "floor": 0.0}
    nested = Holder(Newer(1), {"a": Newer(2, floor=1.0)})
    plain = {"inner": {"steps": 1, "rest": 0}, "more": {"a": {"steps": 2, "rest": 0, "floor": 1.0}}}
    assert to_mapping(nested) == plain and read(Holder, plain, "m") == nested


def test_a_wrong_mapping_is_refused_with_the_exact_message() -> None:
    rows = refused("config")
    messages = [refusal(read, Outer, mapping, "m") for mapping, _ in rows]
    assert messages == [f"ConfigError: {message}" for _, message in rows]


def test_merge_descends_into_sections_and_replaces_lists() -> None:
    base = {"a": 1, "s": {"x": 1, "y": [1, 2]}}
    assert merge(base, {"s": {"y": [3]}, "b": 2}) == {"a": 1, "b": 2, "s": {"x": 1, "y": [3]}}
    assert base == {"a": 1, "s": {"x": 1, "y": [1, 2]}}


def test_merge_replaces_a_section_that_names_another_variant() -> None:
    base = {"rule": {"name": "adam", "rate": 1.0}}
    for change, merged in (
        ({"name": "sgd", "momentum": 0.9}, {"name": "sgd", "momentum": 0.9}),
        ({"name": "adam", "rate": 2.0}, {"name": "adam", "rate": 2.0}),
        ({"rate": 3.0}, {"name": "adam", "rate": 3.0}),
        (None, None),
    ):
        assert merge(base, {"rule": change}) == {"rule": merged}
    assert merge({}, {"rule": {"rate": 3.0}}) == {"rule": {"rate": 3.0}}

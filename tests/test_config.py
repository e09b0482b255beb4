"""Every rule of the params reader, each with its exact message."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from bdl_pipe.config import LATER, merge, read, to_mapping
from bdl_pipe.errors import ConfigError, require


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
    assert to_mapping(Newer(3, late=Inner(), floor=0.0)) == {
        "steps": 3,
        "rest": 0,
        "late": {"widths": [1, 2], "clip": None},
        "floor": 0.0,
    }
    nested = Holder(Newer(1), {"a": Newer(2, floor=1.0)})
    plain = {"inner": {"steps": 1, "rest": 0}, "more": {"a": {"steps": 2, "rest": 0, "floor": 1.0}}}
    assert to_mapping(nested) == plain and read(Holder, plain, "m") == nested


REFUSED = [
    ({"rate": 1.0}, "m.steps is missing"),
    ({"stepz": 1} | GOOD, "m.stepz is not a known key (did you mean steps?)"),
    (
        {"qqq": 1} | GOOD,
        "m.qqq is not a known key (known: steps, rate, label, flip, shape, inner, rule, share, extra, anything)",
    ),
    ({"steps": "3", "rate": 1.0}, "m.steps must be a whole number, got '3'"),
    ({"steps": 3.0, "rate": 1.0}, "m.steps must be a whole number, got 3.0"),
    ({"steps": True, "rate": 1.0}, "m.steps must be a whole number, got True"),
    ({"steps": None, "rate": 1.0}, "m.steps must be a whole number, got None"),
    ({"steps": 1, "rate": "1e-3"}, "m.rate must be a number (write 1.0e-3 rather than 1e-3), got '1e-3'"),
    ({"steps": 1, "rate": False}, "m.rate must be a number, got False"),
    ({"steps": 1, "rate": float("nan")}, "m.rate must be finite, got nan"),
    ({"steps": 1, "rate": float("inf")}, "m.rate must be finite, got inf"),
    (GOOD | {"label": 3}, "m.label must be a text, got 3"),
    (GOOD | {"flip": 1}, "m.flip must be true or false, got 1"),
    (GOOD | {"shape": "round"}, "m.shape must be one of flat, deep, got 'round'"),
    (GOOD | {"shape": ["flat"]}, "m.shape must be one of flat, deep, got ['flat']"),
    (GOOD | {"inner": 3}, "m.inner must be a section (key: value), got 3"),
    (GOOD | {"inner": None}, "m.inner must be a section (key: value), got None"),
    (GOOD | {"inner": {"widths": 3}}, "m.inner.widths must be a list, got 3"),
    (GOOD | {"inner": {"widths": [3, "4"]}}, "m.inner.widths[1] must be a whole number, got '4'"),
    (GOOD | {"inner": {"clip": "no"}}, "m.inner.clip must be a number (write 1.0e-3 rather than 1e-3), got 'no'"),
    (GOOD | {"rule": {"rate": 1.0}}, "m.rule.name is missing (one of adam, sgd)"),
    (GOOD | {"rule": 3}, "m.rule must be a section (key: value), got 3"),
    (GOOD | {"rule": {"name": "adagrad"}}, "m.rule.name must be one of adam, sgd, got 'adagrad'"),
    (GOOD | {"rule": {"name": ["adam"]}}, "m.rule.name must be one of adam, sgd, got ['adam']"),
    (GOOD | {"rule": {"name": "adam"}}, "m.rule.rate is missing"),
    (GOOD | {"rule": {"name": "adam", "rate": -1}}, "m.rule.rate must be > 0, got -1.0"),
    (GOOD | {"rule": {"name": "sgd", "rate": 1.0}}, "m.rule.rate is not a known key (known: name, momentum)"),
    (GOOD | {"share": 0.5}, "m.share must be int or str, got 0.5"),
    (GOOD | {"extra": 3}, "m.extra must be a section (key: value), got 3"),
    (GOOD | {"extra": {"a": "b"}}, "m.extra.a must be a number (write 1.0e-3 rather than 1e-3), got 'b'"),
    ([1], "m must be a section (key: value), got [1]"),
    (None, "m must be a section (key: value), got None"),
]


@pytest.mark.parametrize(("mapping", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_a_wrong_mapping_is_refused_with_the_exact_message(mapping: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(Outer, mapping, "m")
    assert str(caught.value) == message


def test_a_union_of_scalar_types_accepts_a_value_of_each_type() -> None:
    assert read(Outer, GOOD | {"share": "all"}, "m").share == "all"
    assert read(Outer, GOOD | {"share": 7}, "m").share == 7


def test_merge_descends_into_sections_and_replaces_lists() -> None:
    base = {"a": 1, "s": {"x": 1, "y": [1, 2]}}
    assert merge(base, {"s": {"y": [3]}, "b": 2}) == {"a": 1, "b": 2, "s": {"x": 1, "y": [3]}}
    assert base == {"a": 1, "s": {"x": 1, "y": [1, 2]}}


def test_merge_replaces_a_section_that_names_another_variant() -> None:
    base = {"rule": {"name": "adam", "rate": 1.0}}
    assert merge(base, {"rule": {"name": "sgd", "momentum": 0.9}}) == {"rule": {"name": "sgd", "momentum": 0.9}}
    assert merge(base, {"rule": {"name": "adam", "rate": 2.0}}) == {"rule": {"name": "adam", "rate": 2.0}}
    assert merge(base, {"rule": {"rate": 3.0}}) == {"rule": {"name": "adam", "rate": 3.0}}
    assert merge({}, {"rule": {"rate": 3.0}}) == {"rule": {"rate": 3.0}}
    assert merge(base, {"rule": None}) == {"rule": None}

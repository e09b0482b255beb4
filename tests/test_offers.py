"""Methods offered for a size: the order of the registry, what suits, the runs above, and a plugin's own."""

from dataclasses import dataclass

import pytest

from bdl_pipe import offers
from bdl_pipe.data.size import Size
from bdl_pipe.errors import ConfigError
from bdl_pipe.method import Default, Method, Upstream
from bdl_pipe.registry import METHODS, register_method

SMALL, MIDDLE, LARGE = (Size("regression", rows, 13) for rows in (300, 5_000, 200_000))
RIVALS = ["boosting", "linear", "constant"]  # of tables
IMAGES = Size("classification", 300, 144, image=(1, 12, 12), fewest=150)


def names(size: Size) -> list[str]:
    return [method.name for method in offers.offered(size)]


def test_methods_suit_a_task_and_a_size() -> None:
    first = [
        "deterministic",
        "ensemble",
        "swag",
        "ciber_last",
        "ciber_second",
        "vbll",
        "sngp",
        "map_blr",
        "gp",
        "sgmcmc",
    ]
    assert names(SMALL) == [*first, "dark_knowledge", "ffg_u", "ensemble_u", "ffg_w", "bnn", "dropout", *RIVALS]
    assert [name for name in names(SMALL) if name not in names(MIDDLE)] == ["gp"]
    assert [name for name in names(MIDDLE) if name not in names(SMALL)] == ["svgp"]
    assert {name for name in names(MIDDLE) if name not in names(LARGE)} == {"ciber_last", "ciber_second", "map_blr"}
    table = Size("classification", 300, 13)
    assert {name for name in names(IMAGES) if name not in names(table)} == {"vbpc", "random_coreset"}
    assert all("classification" in METHODS[name].tasks for name in names(IMAGES))


def test_upstream_runs_are_the_ones_that_are_needed() -> None:
    def keys(size: Size, *chosen: str) -> list[str]:
        return list(offers.upstream([METHODS[name] for name in chosen], size))

    assert keys(SMALL, "gp", "vbll") == []
    assert keys(SMALL, "dark_knowledge", "swag") == ["iterates", "sgmcmc"]
    assert keys(LARGE, "swag") == ["sgd", "iterates"], "iterates of many rows start at the end of sgd"
    assert keys(IMAGES, *names(IMAGES)) == ["sgd", "iterates", "sgmcmc", "vbpc", "random_coreset"]


def test_seconds_grow_with_what_is_chosen_and_shrink_with_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "step_seconds", lambda size: 1e-3)
    swag, gp = METHODS["swag"], METHODS["gp"]
    # 1,000 steps of 1 ms in each of 5 splits, at cost 0.5 + 0.2; three stages of 3 s
    assert offers.seconds([swag], SMALL) == pytest.approx(0.7 * 1_000 * 1e-3 * 5 + 3 * 3)
    assert offers.seconds([swag, gp], SMALL) == pytest.approx(3.7 * 1_000 * 1e-3 * 5 + 5 * 3)
    monkeypatch.undo()
    assert 0 < offers.step_seconds(SMALL) < 10


@dataclass(frozen=True)
class Config:
    last: int


def test_a_plugins_default_is_offered_and_may_bring_an_upstream_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_others", {})
    above = Upstream("trajectory", 2, 1.5, lambda size: {"epochs": size.epochs(500)}, start=lambda size: "sgd")
    own = Method("own", Config, ("regression",), {}, default=Default(1.0, "long"), upstream={"long": above})
    register_method(own)
    assert names(SMALL)[-1] == "own" and "own" not in names(IMAGES)
    assert list(offers.upstream([own], SMALL)) == ["sgd", "long"]
    register_method(Method("other", Config, ("regression",), {}, default=Default(1.0, "lnog")))
    with pytest.raises(ConfigError, match=r"default\.upstream must be one of sgd, iterates, .*long, got 'lnog'"):
        offers.upstream([METHODS["other"]], SMALL)


def test_networks_follow_from_the_pixels() -> None:
    """Features of at most four pixels a side, and never less than one."""
    sizes = {side: Size("classification", 1000, 1, image=(3, side, side)) for side in (2, 8, 28, 64, 224)}
    blocks = {side: size.network["blocks"] for side, size in sizes.items()}
    assert blocks == {2: 1, 8: 1, 28: 3, 64: 4, 224: 6}

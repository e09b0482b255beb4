"""Overlays: numbers change, comments and everything else stay, and a bad overlay changes nothing."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import tune_cases

import bdl_pipe.registry
from bdl_pipe.errors import UserError
from pipeline.core import overlays
from pipeline.core.load import load

RUN = "{dataset: toy, method: shift, setting: s, seeds: 1, input: teacher/toy-level}"


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.setattr(bdl_pipe.registry, "METHODS", tune_cases.REGISTRY)
    path = tmp_path / "params.yaml"
    path.write_text(tune_cases.PARAMS)
    return path


def overlay(target, text):
    path = target.with_name("overlay.yaml")
    path.write_text(text)
    return path


def test_only_the_named_numbers_change_and_an_overlay_applied_twice_changes_nothing_more(target):
    before = target.read_text().splitlines()
    text = "methods: {level: {add: 1.0e-4}}\nruns: {toy-shift: {override: {inner: {shift: 2.5}}}}\n"
    lines = overlays.apply(overlay(target, text), target)
    after = target.read_text().splitlines()
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert [a.split(":")[0].strip() for a, _ in changed] == ["level", "toy-shift"]
    assert len(lines) == 2
    once = target.read_bytes()
    assert overlays.apply(overlay(target, text), target) == [] and target.read_bytes() == once
    read = load(target)
    assert read.run("teacher", "toy-level").config.add == 1e-4
    assert read.run("student", "toy-shift").config.inner.shift == 2.5
    assert read.run("student", "toy-other").config.inner.shift == 6.0


def test_values_of_the_command_line_are_written_with_comments_kept_or_refused(target):
    before = target.read_text()
    values = ["methods.level.add=1e-4", "runs.toy-shift.override={inner: {shift: 2.5}}"]
    assert overlays.set_values(values, target)[0].startswith("methods.level.add: ")
    assert load(target).run("student", "toy-shift").config.inner.shift == 2.5
    lines = overlays.set_values(["methods.shift.inner.shift=4.0"], target)
    assert lines[1:] == ["runs.toy-shift.override.inner.shift still has 2.5 for this run"]
    assert len(target.read_text().splitlines()) == len(before.splitlines())
    bad = {
        "methods.level.ad=1": "is not a known key",
        "seed=[": "must have a value in YAML",
        "seed=!!int 'x'": "must have a value in YAML",
        "seed=!!bool x": "must have a value in YAML",
        "=3": "must be a dotted key",
    }
    after = target.read_bytes()
    for text, message in bad.items():
        with pytest.raises(UserError, match=message):
            overlays.set_values([text], target)
    assert target.read_bytes() == after


def test_a_key_that_is_given_twice_is_refused(target):
    with pytest.raises(UserError, match=r"^seed must be given once$"):
        overlays.set_values(["seed=1", "methods.level.add=1e-4", "seed=2"], target)


def test_a_section_that_runs_share_by_an_anchor_is_not_changed(target):
    rows = f"toy-a: {RUN[:-1]}, override: &shared {{inner: {{shift: 2.0}}}}}}\n  toy-b: {RUN[:-1]}, override: *shared}}"
    target.write_text(target.read_text().replace("\nruns:\n", f"\nruns:\n  {rows}\n"))
    before = target.read_bytes()
    with pytest.raises(
        UserError, match=r"^runs\.toy-b\.override\.inner\.shift is shared by an anchor .* write it out$"
    ):
        overlays.set_values(["runs.toy-a.override.inner.shift=3.0"], target)
    assert target.read_bytes() == before
    overlays.set_values(["runs.toy-a.seeds=2"], target)
    assert load(target).run("student", "toy-a").spec.seeds == 2


def test_new_entries_are_reported_in_one_line_per_section(target):
    runs = ", ".join(f"toy-new{number}: {RUN}" for number in range(6))
    lines = overlays.apply(overlay(target, f"seed: 9\nruns: {{{runs}}}\n"), target)
    assert lines == ["seed: 3 -> 9", "runs: 6 new: toy-new0, toy-new1, toy-new2, toy-new3 and 2 more"]
    assert load(target).run("student", "toy-new5").config.inner.shift == 6.0


def test_a_bad_overlay_changes_nothing(target):
    before = target.read_bytes()
    bad = {"methods: {shift: {inner: {shfit: 1.0}}}": "is not a known key", "a: [": "is not YAML"}
    bad |= {"methods: {level: {add: many}}": "must be a number", "[1, 2]": "must be sections"}
    for text, message in bad.items():
        with pytest.raises(UserError, match=message):
            overlays.apply(overlay(target, text), target)
        assert target.read_bytes() == before
    assert sorted(p.name for p in target.parent.iterdir()) == [".state", "overlay.yaml", "params.yaml"]  # with the lock


@pytest.mark.parametrize("alone", [True, False], ids=["", "a wrong variant without the lock"])
def test_of_changes_at_once_none_is_lost(target, monkeypatch, alone):
    real_check = overlays._check

    def slowly(text, path):  # every other change begins before this one is written, if it does not wait
        time.sleep(0.05)
        real_check(text, path)

    monkeypatch.setattr(overlays, "_check", slowly)
    if not alone:
        monkeypatch.setattr(overlays, "_alone", lambda path: nullcontext())
    paths = [target.with_name(f"{number}.yaml") for number in range(4)]
    for number, path in enumerate(paths):
        path.write_text(f"runs: {{toy-{number}: {RUN}}}\n")
    with ThreadPoolExecutor(4) as pool:
        changes = [pool.submit(overlays.apply, path, target) for path in paths]
    failed = [change.exception() for change in changes if change.exception()]
    assert not (alone and failed)  # without the lock, threads of one process take each other's temporary file, too
    kept = [number for number in range(4) if f"toy-{number}:" in target.read_text()]
    assert (kept == [0, 1, 2, 3]) == alone


def test_a_data_set_that_was_added_meanwhile_and_a_lock_that_is_held_too_long_are_named(target, monkeypatch):
    path = target.with_name("toy.yaml")
    with pytest.raises(UserError, match=r"--name: params.yaml has a data set 'toy' already"):
        overlays.add("toy", path, {}, [], target)
    assert not path.exists()
    monkeypatch.setattr(overlays, "_LONGEST", 0.1)
    with overlays._alone(target), pytest.raises(UserError, match=r"another command has been changing it.*lock"):
        overlays.apply(overlay(target, "seed: 9\n"), target)


def test_a_params_file_stays_a_link_and_keeps_its_permissions(target):
    shared = target.with_name("shared.yaml")
    target.rename(shared)
    target.symlink_to(shared.name)
    shared.chmod(0o664)
    overlays.apply(overlay(target, "seed: 9\n"), target)
    assert target.is_symlink() and load(target).seed == 9 == load(shared).seed
    assert oct(shared.stat().st_mode & 0o777) == oct(0o664)

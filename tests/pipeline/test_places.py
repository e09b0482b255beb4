"""Where the parts of a run lie."""

from pathlib import Path

from pipeline.core import places


def test_places_are_rooted_for_the_block_alone() -> None:
    before = places.artifact("student", "x"), places.record("student", "x"), places.checkpoints("student", "x")
    with places.rooted(Path("there")):
        assert places.artifact("student", "x") == Path("there/student/x")
        assert places.record("student", "x") == Path("there/student/x.run.json")
        assert places.checkpoints("student", "x") == Path(".state/checkpoints/there/student/x")
    assert before == (
        places.artifact("student", "x"),
        places.record("student", "x"),
        places.checkpoints("student", "x"),
    )
    assert before[0] == Path("work/student/x") and before[2] == Path(".state/checkpoints/student/x")


def test_a_sweep_takes_what_killed_processes_left_and_no_more(tmp_path: Path) -> None:
    """Half an artifact is a folder, half a record or an identity a file."""
    place = tmp_path / "student" / "x"
    for folder in (place, place.with_name(".x.71.tmp"), place.with_name(".x.71.old.tmp")):
        folder.mkdir(parents=True)
        (folder / "0-0.json").write_text("{}")
    for file in (".x.run.json.71.tmp", ".x.identity.json.71.tmp", "x.run.json", ".x-2.run.json.71.tmp"):
        place.with_name(file).write_text("{}")
    places.sweep(place)
    assert {p.name for p in place.parent.iterdir()} == {"x", "x.run.json", ".x-2.run.json.71.tmp"}
    assert (place / "0-0.json").is_file()

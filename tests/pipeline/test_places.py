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

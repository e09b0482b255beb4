"""Who is at a search: one process, here and in storage that machines share, and none that was killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bdl_pipe.errors import UserError
from pipeline.core import provenance
from pipeline.core.storage import Place
from pipeline.search import turn

ROOT = Path(__file__).parents[2]
CODE = """
import sys, time
from pathlib import Path
from pipeline.core.storage import Place
from pipeline.search import turn
with turn.taken(Path(sys.argv[1]), Place(None, sys.argv[2])):
    print("taken", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def other(tmp_path):
    """Another process, which has taken the search of the folder ``one`` and the shared place ``away``."""
    command = [sys.executable, "-c", CODE, str(tmp_path / "one"), str(tmp_path / "away")]
    path = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    assert process.stdout is not None and process.stdout.readline() == "taken\n"
    yield process
    process.kill()
    process.wait()


def take(folder, away=None):
    with turn.taken(folder, away):
        return True


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path, other):
    for away in (None, Place(None, str(tmp_path / "elsewhere"))):
        with pytest.raises(UserError, match="one: another process is at this search; wait for it, or stop it"):
            take(tmp_path / "one", away)
    assert take(tmp_path / "two")
    other.kill()
    other.wait()
    began = time.monotonic()
    assert take(tmp_path / "one", Place(None, str(tmp_path / "away")))  # a dead process of this machine
    assert time.monotonic() - began < 10
    assert not list((tmp_path / "away-turn").iterdir())


@pytest.mark.slow
def test_another_machine_is_refused_while_there_are_signs_of_life(tmp_path, other, monkeypatch, capsys):
    monkeypatch.setattr(provenance, "is_dead", lambda name: False)  # as another machine knows it
    monkeypatch.setattr(turn, "PATIENCE", 12.0)
    away = Place(None, str(tmp_path / "away"))
    with pytest.raises(UserError, match=rf"away-turn: .*/{other.pid}/.* is at this search"):
        take(tmp_path / "mine", away)
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert take(tmp_path / "mine", away)
    assert "is still at this search" in capsys.readouterr().out


def test_who_was_thought_dead_stops(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(turn, "BEAT", 0.1)
    away = Place(None, str(tmp_path / "away"))
    with pytest.raises(KeyboardInterrupt), turn.taken(tmp_path / "one", away):
        Place(None, str(tmp_path / "away-turn")).write("turn.json", {"process": "elsewhere/1/2.0", "token": "x"})
        time.sleep(30)
    assert "another process has taken this search: stopping" in capsys.readouterr().err
    assert (tmp_path / "away-turn/turn.json").exists(), "it is the other one's"


def test_of_two_that_begin_at_once_one_is_refused(tmp_path, monkeypatch):
    away = Place(None, str(tmp_path / "away"))
    sign = Place(None, str(tmp_path / "away-turn"))
    theirs = {"process": "elsewhere/1/2.0", "token": "x", "beat": 0}
    monkeypatch.setattr(turn.time, "sleep", lambda seconds: sign.write("turn.json", theirs))
    with pytest.raises(UserError, match="has begun this search at the same moment"):
        take(tmp_path / "one", away)
    assert sign.read("turn.json") == theirs

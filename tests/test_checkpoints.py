"""Fits that keep checkpoints in files: a stopped fit continues with the same bits; folders of checkpoints in races."""

import itertools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from bdl_pipe import display
from bdl_pipe.artifacts import State
from bdl_pipe.checkpoint_files import CheckpointFiles, CheckpointFolder
from bdl_pipe.checkpoints import Checkpointed, HandedOver, Keeper, facts_of, kept, measured
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.progress import Report, Silent
from tests.cases import fit
from tests.resuming import same_bits


def test_a_fit_that_reached_its_time_limit_continues_with_the_same_bits(
    tiny: dict[str, FitData], tmp_path: Path
) -> None:
    data, keeper, steps = tiny["regression"], CheckpointFiles(tmp_path / "kept"), list[int]()

    def send(name: str, step: int, total: int, metrics: Mapping[str, float]) -> None:
        steps.append(step)

    undisturbed = fit("sgmcmc", "teacher", data)
    with pytest.raises(HandedOver):
        fit("sgmcmc", "teacher", data, report=Checkpointed("chain", keeper, limit=0.0))
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["chain.part"]
    assert same_bits(fit("sgmcmc", "teacher", data, report=Checkpointed("chain", keeper, send)), undisturbed)
    assert steps[0] > 1, "it started over"


def test_seconds_of_earlier_attempts_count_and_a_damaged_checkpoint_is_ignored(tmp_path: Path) -> None:
    keeper: Keeper = CheckpointFiles(tmp_path)
    first = Checkpointed("a", keeper, cost=itertools.count(0.0, 5.0).__next__)
    assert first.load() is None
    first.save(State({}, {"step": 3}))
    stored = facts_of(keeper.load("a"), "a")
    assert stored is not None and stored[0].config == {"step": 3} and stored[1]["seconds"] == 5.0
    second = Checkpointed("a", keeper, cost=itertools.count(0.0, 1.0).__next__)
    last = second.load()
    assert last is not None and last.config == {"step": 3} and second.seconds == 6.0
    (tmp_path / "a.part").write_bytes((tmp_path / "a.part").read_bytes()[:-3])
    assert Checkpointed("a", keeper).load() is None
    quiet = Checkpointed("a", None, every=0.0)
    quiet.save(State({}, {}))
    Silent().save(State({"a": torch.arange(5)}, {"step": 3}))
    assert not any(report.due() or report.load() for report in (quiet, Silent()))


def test_a_result_is_kept_with_its_cost_and_a_damaged_result_is_ignored(tmp_path: Path) -> None:
    keeper = CheckpointFiles(tmp_path)
    Checkpointed("a", keeper, cost=itertools.count(0.0, 100.0).__next__).save(State({}, {"step": 3}))

    def from_checkpoint(report: Report) -> State:
        last = report.load()
        assert last is not None
        return State({}, {"from": last.config["step"]})

    done = measured(from_checkpoint, "a", keeper)
    assert done.result.config == {"from": 3} and 100 <= done.seconds < 200 and done.peak_bytes > 2**20
    assert keeper.load("a") is None, "the checkpoint of a finished fit is left"
    stored = kept(keeper.finished("a"), "a")
    assert stored is not None and stored.result.config == {"from": 3} and stored.seconds == done.seconds
    (tmp_path / "a.done").write_bytes((tmp_path / "a.done").read_bytes()[:-3])
    assert kept(keeper.finished("a"), "a") is None and kept(None, "b") is None


def test_a_display_without_a_terminal_prints_a_line_only_after_an_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with display.Display("chains") as shown:
        shown.expect(2)
        shown.step("a", 1, 4, {"loss": 3.0})
        assert capsys.readouterr().out == ""
        monkeypatch.setattr(display, "_LINE_SECONDS", 0.0)
        shown.step("a", 2, 4, {"loss": 2.0, "accuracy": 1.0})
        shown.done("a")
        shown.say("a worker was lost")
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "chains: 25%, 0 of 2 done, 0 s, loss 2"
    assert second == "chains: 50%, 1 of 2 done, 0 s, loss 2" and third == "chains: a worker was lost"


OPEN = """
import sys
from pathlib import Path
from bdl_pipe.checkpoint_files import CheckpointFolder
assert "torch" not in sys.modules, "a process that only keeps files would need its memory"
folder = CheckpointFolder(Path(sys.argv[1]), "a")
"""


def opened(folder: Path, identity: str) -> CheckpointFolder:
    work = CheckpointFolder(folder, identity)
    work.open()
    return work


def test_folders_of_other_identities_are_removed(tmp_path: Path) -> None:
    opened(tmp_path, "a").save("t", b"old")
    later = opened(tmp_path, "b")
    assert later.load("t") is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "b.lock"]
    later.clear()
    assert not tmp_path.exists()


def test_a_folder_in_which_a_process_works_is_not_removed(tmp_path: Path) -> None:
    """Meanwhile work of another identity, and then of the same identity, begins and ends."""
    work = opened(tmp_path, "a")
    work.save("t", b"kept")
    for identity in ("b", "a"):
        other = opened(tmp_path, identity)
        other.save("u", b"other")
        other.clear()
        assert work.load("t") == b"kept"
        work.save("t", b"kept")
        work.finish("v", b"done")
    work.clear()
    assert not tmp_path.exists()


@pytest.mark.process
def test_the_folder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    code = OPEN + "folder.open(); folder.save('t', b'left'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        opened(tmp_path, "b")
        assert (tmp_path / "a/t.part").read_bytes() == b"left"
        process.kill()
    opened(tmp_path, "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "b.lock"]


@pytest.mark.process
def test_a_folder_that_is_removed_while_it_is_opened_is_made_again(tmp_path: Path) -> None:
    """Three processes open and clear the same folder 300 times each, and no process fails."""
    code = OPEN + "for k in range(300):\n    folder.open(); folder.save('t', b'x'); folder.clear()"
    command = [sys.executable, "-c", code, str(tmp_path / "s")]
    ends = [process.wait() for process in [subprocess.Popen(command) for _ in range(3)]]
    assert ends == [0, 0, 0]


def test_a_folder_removed_during_mkdir_is_made_again_and_a_file_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, raised = Path.mkdir, []

    def removed(self: Path, **options: bool) -> None:
        if self.name == "s" and not raised:
            raised.append(self)
            raise FileExistsError(self)  # as mkdir does where the folder vanishes before mkdir checks it
        mkdir(self, **options)

    monkeypatch.setattr(Path, "mkdir", removed)
    opened(tmp_path / "s", "a").save("t", b"x")
    assert raised and (tmp_path / "s/a/t.part").exists()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        opened(tmp_path / "file", "a")

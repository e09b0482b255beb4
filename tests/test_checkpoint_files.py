"""Folders of checkpoints: old identities' folders are removed, a live process keeps its folder, no race loses one."""

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from bdl_pipe.checkpoint_files import CheckpointFolder

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

"""One runner: what ``repro``, a plain ``dvc repro`` and kills leave of each other's results."""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.conftest import PARAMS, Project, make

pytestmark = pytest.mark.slow
KINDS = ("prepare", "holdout", "trajectory", "student")


def artifacts(project: Project) -> dict[str, bytes]:
    """Every manifest of what is fitted, which holds the hash of every file."""
    work = project.folder / "work"
    return {str(p.relative_to(work)): p.read_bytes() for kind in KINDS for p in (work / kind).glob("*/manifest.json")}


def identities(project: Project) -> dict[str, bytes]:
    place = project.folder / "work/identity"
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*.json")}


def stale(project: Project) -> set[str]:
    """What our own status says."""
    lines = project.pipeline("status").stdout.splitlines()[:-1]
    return {line.split(": ")[0] for line in lines}


def stale_for_dvc(project: Project) -> set[str]:
    lines = project.dvc("status").splitlines()
    return {line.rstrip(":") for line in lines if line.endswith(":") and not line.startswith(("\t", " "))}


def alive(project: Project) -> list[psutil.Process]:
    """Every process that was started in the project's folder or below."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("BDL_TEST") == str(project.folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_plain_dvc_repro_makes_the_same_and_both_agree(finished: Project, tmp_path: Path) -> None:
    """From nothing: the same bits, nothing left for either to do, and no process left behind."""
    project = make(tmp_path / "plain", PARAMS)
    project.env["BDL_TEST"] = str(project.folder)
    said = project.dvc("repro")
    assert artifacts(project) == artifacts(finished)
    assert "is up to date" in said, "the host worked ahead of DVC"
    assert "up to date" in project.dvc("status") and stale(project) == set()
    assert "nothing to do" in project.pipeline("repro").stdout
    until = time.monotonic() + 15
    while alive(project) and time.monotonic() < until:
        time.sleep(0.2)
    assert alive(project) == []


WORD = ('"""', '"""A word more. ')


def test_both_find_the_same_stages_out_of_date(project: Project) -> None:
    """By themselves, before anything that they need is made again. ``sources`` reads the code for DVC first."""

    def found() -> set[str]:
        lines = project.pipeline("status").stdout.splitlines()[:-1]
        own = {line.split(": ")[0] for line in lines if "is to be run" not in line}
        project.dvc("repro", "sources")
        assert stale_for_dvc(project) == own
        return own

    for nobodys in (
        "src/bdl_pipe/coresets/vbpc/closed_form.py",
        "pipeline/work/display.py",
        "pipeline/tracking/experiments.py",
    ):
        project.edit(nobodys, *WORD)
    assert found() == set()
    project.edit("params.yaml", "override: {epochs: 3}", "override: {epochs: 4}")
    project.edit("src/bdl_pipe/baselines/ensemble.py", *WORD)
    assert found() == {"trajectory@boston-sgd", "student@digits-ensemble", "evaluate@digits-ensemble"}
    project.edit("params.yaml", "override: {epochs: 4}", "override: {epochs: 3}")
    project.edit("src/bdl_pipe/baselines/ensemble.py", *WORD[::-1])
    project.edit("params.yaml", "figures_dpi: 110", "figures_dpi: 90")
    assert found() == {"report"}


def test_a_new_method_makes_nothing_out_of_date(project: Project) -> None:
    """The one of docs/your-method.md, added as it is written: its own stages and the report, and nothing else."""
    from tests.test_docs import new_method

    path, text, plugin, params = new_method()
    (project.folder / path).write_text(text)
    project.edit("params.yaml", "methods:\n", f"{plugin}\nmethods:\n  {params}\n")
    row = "  new: {dataset: digits, method: snapshots, setting: small, seeds: 2, input: trajectory/digits-sgd}\n"
    project.edit("params.yaml", "runs:\n", "runs:\n" + row)
    own = {"student@new", "evaluate@new", "report"}
    assert stale(project) == own
    assert stale_for_dvc(project) == {*own, "sources"}
    project.dvc("repro", "sources")
    assert stale_for_dvc(project) == own
    said = project.pipeline("repro").stdout
    assert "3 of 11 stages to run" in said and "| snapshots |" in said
    assert stale_for_dvc(project) == set()


def test_a_cut_lock_file_is_mended_and_nothing_is_made_again(project: Project) -> None:
    before, whole = identities(project), (project.folder / "dvc.lock").read_bytes()
    hashed = whole.index(b"md5: ", whole.index(b"path: work/trajectory/"))
    for cut in (hashed + 20, hashed + 37, whole.rindex(b"    outs:")):  # within a hash, before its ".dir", at a line
        (project.folder / "dvc.lock").write_bytes(whole[:cut])
        done = project.pipeline("repro")
        assert "nothing to do" in done.stdout
        assert identities(project) == before and "up to date" in project.dvc("status")
    (project.folder / "dvc.lock").unlink()
    shutil.rmtree(project.folder / ".state")
    said = project.dvc("repro")
    assert said.count("is up to date") == len(before) and identities(project) == before


def test_what_a_clone_makes_is_in_its_cache_though_the_record_came_by_git(project: Project) -> None:
    for place in ("work", ".state", ".dvc/cache"):
        shutil.rmtree(project.folder / place)
    project.pipeline("repro", "prepare")
    project.dvc("repro", "sources")
    for name in ("prepare@boston", "prepare@digits"):
        assert "up to date" in project.dvc("status", name)


def test_a_driver_that_is_killed_takes_everything_with_it(tmp_path: Path, finished: Project) -> None:
    """In the middle, with Ray at work; the next run goes on and ends with the same bits."""
    project = make(tmp_path / "killed", PARAMS)
    project.env |= {"BDL_TEST": str(project.folder), "BDL_EXECUTOR": "ray", "BDL_TRACKING": "on"}
    process = project.start(sys.executable, "-m", "pipeline", "repro")
    work = project.folder / "work/trajectory"
    until = time.monotonic() + 300
    while not list(work.glob("*/manifest.json")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    assert len(alive(project)) > 2
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    until = time.monotonic() + 40
    while alive(project) and time.monotonic() < until:
        time.sleep(0.2)
    assert alive(project) == []
    before = identities(project)
    project.pipeline("repro")
    after = identities(project)
    assert before and {name: after[name] for name in before} == before, "nothing that was finished is made again"
    assert artifacts(project) == artifacts(finished)


def test_a_second_runner_waits_and_takes_the_result(tmp_path: Path) -> None:
    """The first is stopped in the middle of its stage, so that the second is certain to meet it there."""
    project = make(tmp_path / "two", PARAMS.replace("override: {epochs: 3}", "override: {epochs: 100}"))
    command = (sys.executable, "-m", "pipeline", "repro", "trajectory@boston-sgd")
    first = project.start(*command)
    at_work = int(wait_for(project.folder / ".state/locks/trajectory/boston-sgd.pid"))
    os.kill(at_work, signal.SIGSTOP)
    second = project.start(*command)
    assert second.stdout is not None
    said = next(line for line in second.stdout if "waiting for" in line)
    assert f"trajectory@boston-sgd: waiting for process {at_work}, which is at it" in said
    os.kill(at_work, signal.SIGCONT)
    for process in (first, second):
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, (out, error)
    assert "is up to date" in out
    assert stale(project).isdisjoint({"prepare@boston", "trajectory@boston-sgd"})


def wait_for(file: Path) -> str:
    """What is in a file, once it is there."""
    until = time.monotonic() + 60
    while not (file.is_file() and file.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return file.read_text()


def test_a_stage_whose_input_comes_out_the_same_is_not_run(project: Project) -> None:
    """A comment in the trajectory's module: it is made again with the same bytes, and nothing below it is."""
    project.edit("src/bdl_pipe/trajectory/sgd.py", '"""', '"""A word more. ')
    said = project.pipeline("repro").stdout
    assert "2 stages done" in said and "came out up to date" in said
    assert stale_for_dvc(project) == set() and stale(project) == set()


def test_an_altered_file_is_found(project: Project) -> None:
    """By its size, and by its bytes though the size is the same; it is then made again."""
    file = project.folder / "work/student/digits-ensemble/0-0.safetensors"
    blob = file.read_bytes()
    for altered in (blob[:-1], blob[:-1] + bytes([blob[-1] ^ 1])):
        file.unlink()  # it may be shared with DVC's cache
        file.write_bytes(altered)
        assert "student@digits-ensemble" in stale(project)
    project.pipeline("repro")
    assert file.read_bytes() == blob and stale(project) == set()


def test_dvc_is_asked_only_for_what_it_does_not_know(project: Project) -> None:
    """A folder beside those that the report reads is in DVC's record of it; with nothing new, DVC is not started."""
    shutil.copytree(project.folder / "work/evaluate/digits-ensemble", project.folder / "work/evaluate/other")
    assert stale_for_dvc(project) == {"report"}
    assert "nothing to do" in project.pipeline("repro").stdout
    assert stale_for_dvc(project) == set()
    shutil.rmtree(project.folder / ".dvc")
    again = project.pipeline("repro")
    assert "nothing to do" in again.stdout and again.stderr == ""


def test_without_dvc_the_run_says_so_and_is_whole(tmp_path: Path) -> None:
    """A machine whose DVC does not work: results are in place, and one line says that they are not recorded."""
    project = make(tmp_path / "none", PARAMS)
    shutil.rmtree(project.folder / ".dvc")
    done = project.pipeline("repro", "trajectory@boston-sgd")
    assert "warning: DVC has not recorded the results, which are in place" in done.stderr
    assert (project.folder / "work/trajectory/boston-sgd/manifest.json").is_file()


def test_a_failed_run_prints_no_table_of_other_params(project: Project) -> None:
    """The report that is there is of other numbers: what this run has is printed, and what is missing and why."""
    older = (project.folder / "report/comparison.md").read_text()
    assert "| ensemble |" in older
    project.edit(
        "params.yaml",
        "batch: 32, optimiser: {name: adam, lr: 3e-3}",
        "batch: 32, optimiser: {name: adam, lr: 1e30}",
    )
    project.edit(
        "params.yaml",
        "input: prepare/boston, override: {epochs: 3}",
        "input: prepare/boston, override: {epochs: 3, optimiser: {lr: 3e-3}}",
    )
    done = project.pipeline("repro", code=1)
    assert "FAILED trajectory@digits-sgd" in done.stderr and "lower the learning rate" in done.stderr
    assert "| deterministic |" in done.stdout and "| ensemble |" not in done.stdout
    said = " ".join(done.stdout.split())
    assert "1 of 2 runs are not in this comparison: digits-ensemble: trajectory@digits-sgd failed: " in said
    assert "report: " not in done.stdout, "the page is of other numbers"
    assert (project.folder / "report/comparison.md").read_text() == older

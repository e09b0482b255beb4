"""One runner: ``repro``, a plain ``dvc repro`` and a command after a kill keep each other's results.

Machines that share a DVC remote take each other's results; each machine is a working copy with an empty cache.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pyarrow.parquet
import pytest
from filelock import FileLock

from tests import buckets
from tests.buckets import IDENTIFIER, KEYS, SECRET
from tests.end_to_end import forked
from tests.end_to_end.conftest import FORKED, PARAMS, Project, make

pytestmark = [pytest.mark.slow, pytest.mark.process, FORKED]
KINDS = ("prepare", "holdout", "trajectory", "student")


def artifacts(project: Project) -> dict[str, bytes]:
    """The manifests of data and fits, each of which holds the hashes of its files."""
    work = project.folder / "work"
    return {str(p.relative_to(work)): p.read_bytes() for kind in KINDS for p in (work / kind).glob("*/manifest.json")}


def identities(project: Project) -> dict[str, bytes]:
    place = project.folder / "work/identity"
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*.json")}


def stale(project: Project) -> set[str]:
    """The stages that the pipeline's own status lists as out of date."""
    lines = project.pipeline("status").stdout.splitlines()[:-1]
    return {line.split(": ")[0] for line in lines}


def stale_for_dvc(project: Project) -> set[str]:
    lines = project.dvc("status").splitlines()
    return {line.rstrip(":") for line in lines if line.endswith(":") and not line.startswith(("\t", " "))}


def alive(project: Project) -> list[psutil.Process]:
    """Every process of the project's commands, found by the variable ``BDL_TEST`` in its environment."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("BDL_TEST") == str(project.folder) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def left(project: Project) -> list[psutil.Process]:
    """The processes that still run once all have had time to end."""
    _, there = psutil.wait_procs(alive(project), timeout=60)
    return [process for process in there if process.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def held(project: Project, kind: str, key: str) -> Iterator[None]:
    """Hold a stage's lock, so that a command waits there for the test."""
    lock = project.folder / f".state/locks/{kind}/{key}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.with_suffix(".pid").write_text("12345")
    with FileLock(lock):
        yield


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Read what a command prints up to the line that has ``text``."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"the command has ended: {lines}")


@pytest.mark.parametrize("stages", ["forks", pytest.param("processes", marks=pytest.mark.soak)])
def test_a_plain_dvc_repro_makes_the_same_results_and_leaves_nothing_to_do(
    finished: Project, tmp_path: Path, stages: str
) -> None:
    """From nothing: the same bits, nothing left for either to do, and no process left behind."""
    project = make(tmp_path / "plain", PARAMS)
    project.env["BDL_TEST"] = str(project.folder)
    with forked.served(tmp_path) as place:
        path = project.env["PATH"]
        project.env["PATH"] = f"{place}{os.pathsep}{path}" if stages == "forks" else path
        project.dvc("repro")
    assert artifacts(project) == artifacts(finished)
    assert "up to date" in project.dvc("status") and stale(project) == set()
    assert "nothing to do" in project.pipeline("repro").stdout
    assert left(project) == []


WORD = ('"""', '"""A word more. ')


def test_dvc_and_the_pipeline_find_the_same_stages_out_of_date(project: Project) -> None:
    """Stages that are themselves out of date, before their inputs are made again. ``sources`` first reads the code."""

    def found() -> set[str]:
        lines = project.pipeline("status").stdout.splitlines()[:-1]
        first = {line.split(": ")[0] for line in lines if "has to run first" not in line}
        project.dvc("repro", "sources")
        assert stale_for_dvc(project) == first
        return first

    for unread in ("src/bdl_pipe/coresets/vbpc/closed_form.py", "pipeline/work/display.py", "pipeline/cli.py"):
        project.edit(unread, *WORD)
    assert found() == set()
    project.edit("params.yaml", "override: {epochs: 3}", "override: {epochs: 4}")
    project.edit("src/bdl_pipe/baselines/ensemble.py", *WORD)
    assert found() == {"trajectory@boston-sgd", "student@digits-ensemble", "evaluate@digits-ensemble"}
    project.edit("params.yaml", "override: {epochs: 4}", "override: {epochs: 3}")
    project.edit("src/bdl_pipe/baselines/ensemble.py", *WORD[::-1])
    project.edit("params.yaml", "figures_dpi: 110", "figures_dpi: 90")
    assert found() == {"report"}


def test_a_truncated_lock_file_is_rewritten_and_no_stage_runs_again(project: Project) -> None:
    """And a clone, whose lock file came by git, has the results that it makes in its cache."""
    before, whole = identities(project), (project.folder / "dvc.lock").read_bytes()
    hashed = whole.index(b"md5: ", whole.index(b"path: work/trajectory/"))
    for cut in (hashed + 20, hashed + 2, whole.rindex(b"    outs:")):  # within a hash, within a word, at a line
        (project.folder / "dvc.lock").write_bytes(whole[:cut])
        done = project.pipeline("repro")
        assert "nothing to do" in done.stdout
        assert identities(project) == before and "up to date" in project.dvc("status")
    for place in ("work", ".state", ".dvc/cache"):
        shutil.rmtree(project.folder / place)
    project.pipeline("repro", "prepare")
    project.dvc("repro", "sources")
    assert all("up to date" in project.dvc("status", f"prepare@{name}") for name in ("boston", "digits"))


def test_a_killed_command_leaves_no_process_and_its_finished_results_are_kept(
    tmp_path: Path, finished: Project
) -> None:
    """It is killed in the middle; the next command runs no finished stage again and ends with the same bits."""
    project = make(tmp_path / "killed", PARAMS)
    project.env["BDL_TEST"] = str(project.folder)
    with held(project, "student", "boston-deterministic"):
        process = project.start(sys.executable, "-m", "pipeline", "repro")
        read_until(process, "student@boston-deterministic: waiting for process 12345, which runs this stage")
        assert len(alive(project)) > 2
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert left(project) == []
    before = identities(project)
    project.pipeline("repro")
    after = identities(project)
    assert before and {name: after[name] for name in before} == before, "nothing that was finished is made again"
    assert artifacts(project) == artifacts(finished)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_dvc_leaves_no_process_of_its_stage(tmp_path: Path, number: signal.Signals) -> None:
    project = make(tmp_path / "killed", PARAMS)
    project.env["BDL_TEST"] = str(project.folder)
    with held(project, "prepare", "boston"):
        process = project.start(sys.executable, "-m", "dvc", "repro", "prepare@boston")
        read_until(process, "prepare@boston: waiting for process 12345, which runs this stage")
        os.kill(process.pid, number)
        process.communicate()
        assert left(project) == []


def test_of_two_commands_one_runs_a_stage_and_the_other_takes_the_result(tmp_path: Path) -> None:
    project = make(tmp_path / "two", PARAMS)
    with held(project, "trajectory", "boston-sgd"):
        both = [project.start(sys.executable, "-m", "pipeline", "repro", "trajectory@boston-sgd") for _ in range(2)]
        for process in both:
            read_until(process, "trajectory@boston-sgd: waiting for process 12345, which runs this stage")
    output = ""
    for process in both:
        out, error = process.communicate()
        assert process.returncode == 0, (out, error)
        output += out
    assert output.count("trajectory@boston-sgd: done") == 1 and "trajectory@boston-sgd: is up to date" in output
    assert stale(project).isdisjoint({"prepare@boston", "trajectory@boston-sgd"})


def test_an_altered_result_is_found_and_made_again(project: Project) -> None:
    """It is found by its size, and by its bytes where the size is the same."""
    file = project.folder / "work/student/digits-ensemble/0-0.safetensors"
    blob = file.read_bytes()
    for altered in (blob[:-1], blob[:-1] + bytes([blob[-1] ^ 1])):
        file.unlink()  # it may be shared with DVC's cache
        file.write_bytes(altered)
        assert "student@digits-ensemble" in stale(project)
    project.pipeline("repro")
    assert file.read_bytes() == blob and stale(project) == set()


def test_a_stage_that_comes_out_the_same_and_another_spelling_of_a_command_run_no_stage_again(project: Project) -> None:
    """A comment in the trajectory's module: it is made again with the same bytes, and nothing below it is."""
    project.edit("src/bdl_pipe/trajectory/sgd.py", *WORD)
    output = project.pipeline("repro").stdout
    assert "2 stages done" in output and "came out up to date" in output
    assert stale_for_dvc(project) == set() and stale(project) == set()
    project.edit("dvc.yaml", "exec python -m stages prepare", "exec python -m  stages prepare")
    assert stale_for_dvc(project) == {"prepare@boston", "prepare@digits"}
    assert "nothing to do" in project.pipeline("repro").stdout
    assert stale_for_dvc(project) == set()


def test_dvc_is_not_started_if_nothing_is_out_of_date(project: Project) -> None:
    shutil.rmtree(project.folder / ".dvc")
    again = project.pipeline("repro")
    assert "nothing to do" in again.stdout and again.stderr == ""


def test_a_run_without_dvc_has_its_results_and_warns_that_they_are_not_recorded(tmp_path: Path) -> None:
    """A machine whose DVC does not work: results are in place, and one line says that they are not recorded."""
    project = make(tmp_path / "none", PARAMS)
    shutil.rmtree(project.folder / ".dvc")
    done = project.pipeline("repro", "trajectory@boston-sgd")
    assert "warning: DVC has not recorded the results, which are in place" in done.stderr
    assert (project.folder / "work/trajectory/boston-sgd/manifest.json").is_file()


def test_a_failed_run_prints_its_own_results_and_not_the_old_report(project: Project) -> None:
    """The existing report is of other params; the run prints its own results, the missing runs and the reason."""
    older = (project.folder / "report/comparison.md").read_text()
    assert "| ensemble |" in older
    project.edit("params.yaml", "lr: 3.0e-3", "lr: 1.0e+30")
    project.edit("params.yaml", "override: {epochs: 3}", "override: {epochs: 3, optimiser: {lr: 3.0e-3}}")
    done = project.pipeline("repro", code=1)
    assert "FAILED trajectory@digits-sgd" in done.stderr and "lower the learning rate" in done.stderr
    needing = "evaluate@digits-ensemble, report, scores@digits-ensemble, student@digits-ensemble"
    assert f"not run, because a stage that they need failed: {needing}\n" in done.stderr
    assert "| deterministic |" in done.stdout and "| ensemble |" not in done.stdout
    output = " ".join(done.stdout.split())
    assert "1 of 2 runs are not in this comparison: digits-ensemble: trajectory@digits-sgd failed: " in output
    assert "report: " not in done.stdout, "the page is of other numbers"
    assert (project.folder / "report/comparison.md").read_text() == older


def test_an_experiment_of_dvc_runs_what_changed_and_applies_again(project: Project) -> None:
    """DVC runs ``sources``, an added decision and the report, and no fit again; `exp apply` restores all results."""
    agents = "agents: {linear: {rule: thompson, method: linear, updates: true}, chance: {rule: uniform}}"
    task = "task: {name: optimisation, function: branin, evaluations: 3, candidates: 20}"
    with open(project.folder / "params.yaml", "a") as file:
        file.write(f"decisions: {{valley: {{{task}, {agents}}}}}\n")
    output = project.dvc("exp", "run", "--name", "finer", "-S", "report.figures_dpi=90")
    ran = [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]
    assert ran == ["sources", "decide@valley", "report"]
    assert '<section id="valley">' in (project.folder / "report/pages/explore.html").read_text()
    assert "up to date" in project.dvc("status")
    assert "nothing to do" in project.pipeline("repro").stdout
    project.git("checkout", "-q", ".")
    shutil.rmtree(project.folder / "work")
    assert "decisions" not in (project.folder / "params.yaml").read_text()
    project.dvc("exp", "apply", "finer")
    assert "figures_dpi: 90" in (project.folder / "params.yaml").read_text()
    assert "up to date" in project.dvc("status") and stale(project) == set()
    rows = [line.split(",") for line in project.dvc("exp", "show", "--csv").splitlines()]
    dpi = {row[0]: row[rows[0].index("report.figures_dpi")] for row in rows[2:]}
    assert dpi["finer"] == "90" and {*dpi.values()} == {"110", "90"}
    assert {path.stem for path in (project.folder / "report/plots").iterdir()} == {
        "reliability",
        "intervals",
        "risk",
        "cost",
        "training",
    }


BOSTON: Final = "evaluate@boston-deterministic"


def machine(folder: Path, url: str, more: str = "") -> Project:
    """A clone with an empty cache; the remote's address lies in a file that git does not track."""
    project = make(folder, PARAMS)
    config = f"[core]\n    remote = store\n['remote \"store\"']\n    url = {url}\n{more}"
    (project.folder / ".dvc/config.local").write_text(config)
    project.env["BDL_REMOTE"] = "on"
    return project


def test_a_second_machine_takes_stored_results_and_runs_the_missing_stages(finished: Project, tmp_path: Path) -> None:
    first, second = (machine(tmp_path / name, str(tmp_path / "store")) for name in ("first", "second"))
    assert "3 stages done" in first.pipeline("repro", "student@boston-deterministic").stdout
    output = second.pipeline("repro", BOSTON).stdout
    assert "1 of 4 stages to run" in output and "[1/1] evaluate@boston-deterministic: done" in output
    assert artifacts(second) == artifacts(first) and artifacts(second).items() <= artifacts(finished).items()
    assert "nothing to do" in first.pipeline("repro", "student@boston-deterministic").stdout
    assert "nothing to do: all 4 results" in first.pipeline("repro", BOSTON).stdout, "taken, and not run"


@pytest.mark.soak
def test_other_params_take_no_stored_result(tmp_path: Path) -> None:
    first, second = (machine(tmp_path / name, str(tmp_path / "store")) for name in ("first", "second"))
    first.pipeline("repro", "prepare@boston")
    second.edit("params.yaml", "splits: 2", "splits: 1")
    assert "1 of 1 stages to run" in second.pipeline("repro", "prepare@boston").stdout


@pytest.mark.soak
def test_results_that_dvc_has_not_recorded_are_kept(tmp_path: Path) -> None:
    """DVC would delete them in order to fetch others, so the pipeline records them first."""
    project = machine(tmp_path / "one", str(tmp_path / "store"))
    project.pipeline("repro", "trajectory@boston-sgd", env={"BDL_REMOTE": "off"})
    shutil.rmtree(project.folder / ".state")
    (project.folder / "dvc.lock").unlink()
    assert "1 of 3 stages to run" in project.pipeline("repro", "student@boston-deterministic").stdout


@pytest.mark.parametrize("remote", ["", "unreachable"])
def test_a_remote_that_cannot_be_used_is_refused_before_any_work(tmp_path: Path, remote: str) -> None:
    (tmp_path / "file").touch()
    project = machine(tmp_path / "one", str(tmp_path / "file/store"))
    if not remote:
        (project.folder / ".dvc/config.local").unlink()
    output = project.pipeline("repro", "prepare@boston", code=2).stderr
    rule = "has no default remote" if not remote else "the DVC remote store"
    assert output.startswith("repro: BDL_REMOTE=on: ") and rule in output and output.count("\n") == 1
    assert not (project.folder / "work/prepare").exists()


def leaks(folder: Path, texts: dict[str, bytes]) -> list[str]:
    """The files below a folder, and the texts, that hold a key; Parquet is read, as it compresses."""
    keys = [IDENTIFIER.encode(), SECRET.encode()]
    leaks = [name for name, text in texts.items() if any(key in text for key in keys)]
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            text = path.read_bytes()
            if path.suffix == ".parquet":
                text += str(pyarrow.parquet.read_table(path).to_pylist()).encode()
            leaks += [str(path.relative_to(folder))] if any(key in text for key in keys) else []
    return leaks


@pytest.mark.soak
def test_a_remote_on_s3_works_and_no_output_or_file_holds_its_keys(tmp_path: Path) -> None:
    with buckets.served("bdl") as (environment, s3):
        more = f"    endpointurl = {environment['AWS_ENDPOINT_URL']}\n    region = us-east-1\n"
        more += f"    access_key_id = {IDENTIFIER}\n    secret_access_key = {SECRET}\n"
        first, second = (machine(tmp_path / name, "s3://bdl/x", more) for name in ("first", "second"))
        output = first.pipeline("repro", BOSTON, env={"BDL_TRACKING": "on", **KEYS}).stdout
        taken = second.pipeline("repro", BOSTON, env=KEYS).stdout
        stored = buckets.files(s3, "bdl")
    assert "4 stages done" in output and "nothing to do" in taken
    assert artifacts(second) == artifacts(first)
    for project in (first, second):
        (project.folder / ".dvc/config.local").unlink()  # This file had the keys.
    assert stored and leaks(tmp_path, {"first": output.encode(), "second": taken.encode(), **stored}) == []
    (tmp_path / "first/planted").write_text(f"key={SECRET}")
    assert leaks(tmp_path, {"line": IDENTIFIER.encode()}) == ["line", "first/planted"]

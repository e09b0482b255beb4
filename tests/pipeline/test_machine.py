"""machine.yaml, and the resources that tasks receive on a cluster of two kinds of node; one declares a GPU."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from bdl_pipe.errors import ConfigError
from pipeline.core.settings import Amounts, Machine, Needs, Settings, read_machine
from pipeline.plan.code import BODIES
from pipeline.work import choose
from pipeline.work.cluster import prepare_environment
from pipeline.work.display import Display
from pipeline.work.executor import Task
from tests.pipeline import fake_work

ROOT = Path(__file__).parents[2]
TEXT = """
resources:
  default: {gpus: 0.25}
  trajectory: {gpus: 1, memory_gb: 2.5}
  student.ciber: {gpus: 0, cpus: 2}
  evaluate: {resources: {A100: 1}}
"""


def test_the_most_specific_entry_decides(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(TEXT)
    settings = Settings.read({"BDL_MACHINE": str(path), "BDL_DEVICE": "cuda", "BDL_GPUS_PER_TASK": "0.5"})
    assert settings.needs == Needs(gpus=0.5)
    assert settings.of("teacher", "sgmcmc").needs == Needs(gpus=0.25)
    assert settings.of("trajectory", "sgd").needs == Needs(gpus=1, memory_gb=2.5)
    assert settings.of("evaluate", "sgmcmc").needs == Needs(gpus=0.25, others=(("A100", 1.0),))
    ciber = settings.of("student", "ciber")
    assert ciber.needs == Needs(cpus=2) and ciber.device == "cpu", "a task without a GPU computes on the CPU"
    assert settings.of("student", "swag").device == "cuda"
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert Settings.read({"BDL_DEVICE": "cuda", "BDL_GPUS_PER_TASK": "0"}).of("student", "swag").device == "cuda"


def test_every_stage_kind_with_tasks_has_an_entry(tmp_path: Path) -> None:
    """Each stage module that gives tasks to an executor."""
    modules = {kind: Path(f"{module.replace('.', '/')}.py") for kind, module in BODIES.items()}
    kinds = [kind for kind, module in modules.items() if "executor.map(" in (ROOT / module).read_text()]
    assert {"prepare", "student", "evaluate", "decide"} <= set(kinds)
    path = tmp_path / "machine.yaml"
    path.write_text(f"resources: {{{', '.join(f'{kind}: {{cpus: 3}}' for kind in kinds)}}}")
    settings = Settings.read({"BDL_MACHINE": str(path)})
    assert all(settings.of(kind, "swag").needs == Needs(cpus=3) for kind in kinds)


def test_without_machine_yaml_the_settings_keep_their_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.read({}).of("student", "swag") == Settings.read({}) == Settings()
    (tmp_path / "machine.yaml").write_text(TEXT)
    assert Settings.read({}).of("student", "swag").needs == Needs(gpus=0.25)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("resource: {}", r"machine\.yaml\.resource is not a known key \(did you mean resources\?\)"),
        ("resources: [1]", r"machine\.yaml\.resources must be a section \(key: value\), got \[1\]"),
        ("resources: {studnt: {gpus: 1}}", r"resources\.studnt is not a stage kind \(did you mean student\?\)"),
        ("resources: {default.swag: {gpus: 1}}", r"resources\.default\.swag is not a stage kind"),
        ("resources: {student: 1}", r"resources\.student must be a section \(key: value\), got 1"),
        ("resources: {student: {gpu: 1}}", r"resources\.student\.gpu is not a known key \(did you mean gpus\?\)"),
        ("resources: {student: {gpus: -1}}", r"resources\.student\.gpus must be >= 0, got -1"),
        ("resources: {student: {gpus: true}}", r"resources\.student\.gpus must be a number, got True"),
        ("resources: {student: {gpus: .nan}}", r"resources\.student\.gpus must be finite, got nan"),
        ("resources: {student: {gpus: 1.5}}", r"gpus must be a whole number if it is more than 1, got 1\.5"),
        ("resources: {student: {resources: 3}}", r"resources\.student\.resources must be a section \(key: value\)"),
        ("resources: {student: {resources: {A100: x}}}", r"resources\.A100 must be a number .*got 'x'"),
        ("resources: {student: {resources: {A100: -1}}}", r"student\.resources\.A100 must be >= 0, got -1"),
    ],
)
def test_a_wrong_entry_of_machine_yaml_is_named(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "machine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rule):
        read_machine(tmp_path / "machine.yaml")


def test_an_unknown_method_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"resources\.student\.swga names no method \(did you mean swag\?\)"):
        Machine({"student.swga": Amounts()}).check_methods(["swag", "sgd"])
    with pytest.raises(ConfigError, match="BDL_MACHINE must be a file, got"):
        Settings.read({"BDL_MACHINE": str(tmp_path / "none.yaml")})


@pytest.fixture(scope="module")
def mixed() -> Iterator[tuple[str, str]]:
    """The address of a cluster with a node of two CPUs and a node of four CPUs and a GPU; the second node's id."""
    before = dict(os.environ)
    prepare_environment()
    os.environ.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "num_gpus": 0, "include_dashboard": False, "object_store_memory": 10**8}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    node = cluster.add_node(num_cpus=4, num_gpus=1, resources={"A100": 1}, object_store_memory=10**8)
    try:
        yield cluster.address, node.node_id
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.soak
@pytest.mark.ray
@pytest.mark.xdist_group("cluster")
def test_tasks_are_placed_and_packed_by_their_resources(mixed: tuple[str, str], tmp_path: Path) -> None:
    """Four tasks need half a GPU each: two run at once and wait for each other, and three never run at once."""
    address, node = mixed

    def run(needs: Needs, count: int, together: int = 1) -> list[tuple[list[str], str, float, float]]:
        executor = choose(Settings(address=address, needs=needs))
        folder = tmp_path / f"{needs} {count}"
        folder.mkdir()
        tasks = [Task(f"t{number}", (str(folder), together)) for number in range(count)]
        try:
            with Display("placed") as display:
                return [done.result for done in executor.map(fake_work.placed, tasks, shared={}, display=display)]
        finally:
            executor.close()

    halves = run(Needs(gpus=0.5), 4, together=2)
    assert {(tuple(gpus), where) for gpus, where, _, _ in halves} == {(("0",), node)}
    assert _at_once(halves) == 2
    assert _at_once(run(Needs(gpus=1), 2)) == 1
    (named,) = run(Needs(others=(("A100", 1.0),)), 1)
    assert named[1] == node and not named[0]


def _at_once(spans: list[tuple[list[str], str, float, float]]) -> int:
    """Return the largest number of tasks that ran at one moment."""
    return max(sum(began <= start < ended for _, _, began, ended in spans) for _, _, start, _ in spans)

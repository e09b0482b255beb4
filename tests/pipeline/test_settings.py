"""Settings of a machine, from the environment and machine.yaml, and the resources that tasks receive on a cluster.

The cluster has two kinds of node; one declares a GPU. And where the parts of a run lie.
"""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bdl_pipe.errors import ConfigError, UserError
from pipeline.core import places
from pipeline.core.settings import Amounts, Machine, Needs, Settings, read_machine, require_device
from pipeline.plan.code import BODIES
from pipeline.work import choose
from pipeline.work.cluster import prepare_environment
from pipeline.work.executor import Task
from pipeline.work.process import repeat_bits
from tests.pipeline import fake_work
from tests.pipeline.params_cases import REFUSED

ROOT = Path(__file__).parents[2]
TEXT = """
resources:
  default: {gpus: 0.25}
  trajectory: {gpus: 1, memory_gb: 2.5}
  student.ciber: {gpus: 0, cpus: 2}
  evaluate: {resources: {A100: 1}}
"""


def test_the_most_specific_entry_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.read({}).of("student", "swag") == Settings.read({}) == Settings()
    path = tmp_path / "machine.yaml"
    path.write_text(TEXT)
    settings = Settings.read({"BDL_MACHINE": str(path), "BDL_DEVICE": "cuda", "BDL_GPUS_PER_TASK": "0.5"})
    assert settings.needs == Needs(gpus=0.5) and Settings.read({}).of("student", "swag").needs == Needs(gpus=0.25)
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


def test_a_wrong_entry_of_machine_yaml_is_named(tmp_path: Path) -> None:
    for text, rule in REFUSED["machine"]:
        (tmp_path / "machine.yaml").write_text(text)
        with pytest.raises(ConfigError, match=rule):
            read_machine(tmp_path / "machine.yaml")
    with pytest.raises(ConfigError, match=r"resources\.student\.swga names no method \(did you mean swag\?\)"):
        Machine({"student.swga": Amounts()}).check_methods(["swag", "sgd"])


def test_settings_have_defaults_and_are_read_from_the_environment() -> None:
    assert Settings.read({}) == Settings("ray", "", "cpu", Needs(), 1, 15.0)
    assert Settings.read({}).workers == 1 and Settings.read({"BDL_WORKERS_PER_TASK": "4"}).workers == 4
    assert Settings.read({"BDL_DEVICE": "cuda"}).needs.gpus == 1.0
    assert Settings.read({"BDL_WAIT_FOR_NODES": "600"}).node_seconds == 600.0
    assert Settings.read({"RAY_ADDRESS": "http://head:8265/"}).jobs == "http://head:8265"
    assert Settings.read({"BDL_REMOTE": "on"}).remote and not Settings.read({"BDL_REMOTE": "off"}).remote
    assert Settings.read({"BDL_MLFLOW_ARTIFACTS": "s3://bucket/path/"}).artifacts == "s3://bucket/path"
    assert Settings.read({"BDL_EXECUTOR": "inline"}).executor == "inline"


@pytest.mark.parametrize(("name", "value", "rule"), REFUSED["settings"])
def test_a_wrong_setting_is_named_in_the_error(name: str, value: str, rule: str) -> None:
    with pytest.raises(UserError, match=f"{name} {rule}"):
        Settings.read({name: value})


def test_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="there is no GPU"):
        require_device("cuda")
    require_device("cpu")


def test_places_have_another_root_only_within_the_block() -> None:
    def own() -> list[str]:
        return [str(place("student", "x")) for place in (places.artifact, places.record, places.checkpoints)]

    before = ["work/student/x", "work/student/x.run.json", ".state/checkpoints/student/x"]
    assert own() == before
    with places.rooted(Path("there")):
        assert own() == ["there/student/x", "there/student/x.run.json", ".state/checkpoints/there/student/x"]
    assert own() == before


def test_a_sweep_removes_only_the_leftovers_of_killed_processes(tmp_path: Path) -> None:
    """Half an artifact is a folder; half a record or half an identity is a file."""
    place = tmp_path / "student" / "x"
    for folder in (place, place.with_name(".x.71.tmp"), place.with_name(".x.71.old.tmp")):
        folder.mkdir(parents=True)
        (folder / "0-0.json").write_text("{}")
    for file in (".x.run.json.71.tmp", ".x.identity.json.71.tmp", "x.run.json", ".x-2.run.json.71.tmp"):
        place.with_name(file).write_text("{}")
    places.sweep(place)
    assert {p.name for p in place.parent.iterdir()} == {"x", "x.run.json", ".x-2.run.json.71.tmp"}
    assert (place / "0-0.json").is_file()


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    tf32 = torch.backends.cudnn.allow_tf32
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.allow_tf32 = tf32


def test_repeat_bits_sets_determinism_and_full_float32_for_a_gpu_only(flags: None) -> None:
    torch.backends.cudnn.allow_tf32 = True
    repeat_bits("cpu")
    assert torch.backends.cudnn.allow_tf32 and not torch.are_deterministic_algorithms_enabled()
    repeat_bits("cuda:0")
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.backends.cudnn.allow_tf32 and not torch.utils.deterministic.fill_uninitialized_memory


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
            return [done.result for done in fake_work.run(executor, fake_work.placed, *tasks)]
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

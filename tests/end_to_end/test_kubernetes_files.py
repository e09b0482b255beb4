"""cluster/'s files of Kubernetes against Kubernetes' own schemas, KubeRay's rules and the project's other files.

KubeRay's rules are written in short, as of 1.7: the keys of its two kinds in kuberay.yaml, and the rules that its
operator checks here. No package has KubeRay's own schemas.
"""

import copy
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.end_to_end.conftest import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # Ray's imports warn
CLUSTER: Final = ROOT / "cluster"
KUBERNETES: Final = "1.37"
AUTHOR: Final = ("-c", "user.name=t", "-c", "user.email=t@t")
PINNED: Final = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
SPECS: Final = yaml.safe_load(Path(__file__).with_name("kuberay.yaml").read_text())
LONGEST: Final = {"RayCluster": 53, "RayJob": 47}  # of names, to which the operator adds its own ends


def documents(name: str) -> list[dict[str, Any]]:
    return [dict(each) for each in yaml.safe_load_all((CLUSTER / name).read_text())]


def cluster_of(document: dict[str, Any]) -> dict[str, Any]:
    """The cluster's spec in a RayCluster or in a RayJob."""
    spec = document["spec"]
    return dict(spec if document["kind"] == "RayCluster" else spec["rayClusterSpec"])


def groups_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The head's group and the workers' groups."""
    spec = cluster_of(document)
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def check(document: dict[str, Any]) -> None:
    """Raise the error of a wrong document: by a schema, or with the rules of KubeRay's operator that it breaks."""
    kind = document["kind"]
    if kind not in SPECS:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        return
    jsonschema.validate(document, SPECS[kind])
    for group in groups_of(document):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **group["template"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    broken = list(rules(document))
    assert not broken, broken


def rules(document: dict[str, Any]) -> Iterator[str]:
    """Yield the rules that the document breaks: of KubeRay's operator, and of a pod's start."""
    from ray.scripts.scripts import start

    name, spec, cluster = document["metadata"]["name"], document["spec"], cluster_of(document)
    if len(name) > LONGEST[document["kind"]] or not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield f"the name {name}"
    if spec.get("ttlSecondsAfterFinished") and not spec.get("shutdownAfterJobFinishes"):
        yield "ttlSecondsAfterFinished is of clusters that end with their job"
    options = {option.removeprefix("--") for parameter in start.params for option in parameter.opts}
    for group in groups_of(document):
        params, pod = group["rayStartParams"], group["template"]["spec"]
        if not params.keys() <= options - {"labels"}:
            yield f"ray start has no {params.keys() - options}"
        if cluster.get("enableInTreeAutoscaling") and pod.get("restartPolicy", "Never") != "Never":
            yield "the autoscaler replaces pods"
        if not group.get("minReplicas", 0) <= group.get("replicas", 0) <= group.get("maxReplicas", 2**31 - 1):
            yield "replicas out of their bounds"
        if pod["securityContext"].get("runAsNonRoot") and not pod["securityContext"].get("runAsUser"):
            yield "runAsNonRoot needs a user's number"
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        containers = (*pod.get("initContainers", ()), *pod["containers"])
        mounts = {mount["name"] for container in containers for mount in container.get("volumeMounts", ())}
        if mounts != volumes:
            yield f"volumes {volumes} and mounts {mounts}"


@pytest.mark.parametrize("name", ["raycluster.yaml", "rayjob.yaml"])
def test_the_files_follow_the_schemas_and_rules_of_kubernetes_and_kuberay(name: str) -> None:
    for document in documents(name):
        check(document)


def _head(document: dict[str, Any]) -> dict[str, Any]:
    return dict(document["spec"]["rayClusterSpec"]["headGroupSpec"])


WRONG: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "backoffLimits": lambda job: job["spec"].update(backoffLimits=2),
    "is not of type 'integer'": lambda job: job["spec"].update(backoffLimit="2"),
    "is not of type 'string'": lambda job: _head(job)["rayStartParams"].update({"num-cpus": 0}),
    "imagePolicy": lambda job: _head(job)["template"]["spec"]["containers"][0].update(imagePolicy="Always"),
    "runAsGroups": lambda job: _head(job)["template"]["spec"]["securityContext"].update(runAsGroups=1000),
    "is not one of": lambda job: job["spec"]["rayClusterSpec"].update(autoscalerOptions={"upscalingMode": "Fast"}),
    "ray start has no": lambda job: _head(job)["rayStartParams"].update({"cpus": "0"}),
    "end with their job": lambda job: job["spec"].pop("shutdownAfterJobFinishes"),
    "needs a user's number": lambda job: _head(job)["template"]["spec"]["securityContext"].pop("runAsUser"),
    "replaces pods": lambda job: _head(job)["template"]["spec"].update(restartPolicy="Always"),
    "and mounts": lambda job: _head(job)["template"]["spec"].pop("volumes"),
    "the name": lambda job: job["metadata"].update(name="bdl_repro"),
    "out of their bounds": lambda job: job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0].update(replicas=17),
}


@pytest.mark.parametrize("said", WRONG)
def test_a_job_or_a_claim_with_a_wrong_key_or_value_is_refused(said: str) -> None:
    job = copy.deepcopy(documents("rayjob.yaml")[1])
    WRONG[said](job)
    with pytest.raises((jsonschema.ValidationError, AssertionError), match=re.escape(said)):
        check(job)
    claim = documents("rayjob.yaml")[0]
    claim["spec"]["accessMode"] = claim["spec"].pop("accessModes")
    with pytest.raises(jsonschema.ValidationError, match="accessMode"):
        check(claim)


def test_versions_ports_and_the_image_match_the_project() -> None:
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version
    for document in (documents("raycluster.yaml")[0], documents("rayjob.yaml")[1]):
        assert cluster_of(document)["rayVersion"] == PINNED["ray"]
        for group in groups_of(document):
            (container,) = group["template"]["spec"]["containers"]
            assert container["image"] == f"bdl-pipe:{version[1]}"
            assert container["resources"]["requests"] == container["resources"]["limits"]
        head = groups_of(document)[0]
        ports = {p["name"]: p["containerPort"] for p in head["template"]["spec"]["containers"][0]["ports"]}
        assert ports == {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
        assert head["rayStartParams"]["dashboard-host"] == "0.0.0.0"  # or no laptop reaches it


def test_the_entry_point_is_a_valid_command_of_the_pipeline() -> None:
    claim, job = documents("rayjob.yaml")
    *_, inner = shlex.split(job["spec"]["entrypoint"])
    words = shlex.split(inner.split("&&")[-1])
    assert "export BDL_WAIT_FOR_NODES=" in inner, "its workers come when work asks for them"
    assert words[:4] == ["PYTHONPATH=src", "python", "-m", "pipeline"]
    from tests import commands

    assert commands.parse(words[4:]).info_name == "repro"
    (volume,) = groups_of(job)[0]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_a_partial_clone_is_replaced_and_a_whole_clone_is_kept(tmp_path: Path) -> None:
    """The volume is not empty: a new volume has its file system's own folder, and a kill may leave half a clone."""
    (container,) = groups_of(documents("rayjob.yaml")[1])[0]["template"]["spec"]["initContainers"]
    source = tmp_path / "source"
    for command in (
        ["init", "-q", str(source)],
        ["-C", str(source), *AUTHOR, "commit", "-q", "--allow-empty", "-m", "it"],
    ):
        subprocess.run(["git", *command], check=True)
    volume = tmp_path / "volume"
    (volume / "lost+found").mkdir(parents=True)
    (volume / "clone/.git").mkdir(parents=True)

    def start(repository: Path) -> int:
        environment = {**os.environ, "BDL_REPOSITORY": str(repository)}
        return subprocess.run(container["command"], cwd=volume, env=environment, capture_output=True).returncode

    assert start(tmp_path / "none") != 0 and not (volume / "bdl-pipe").exists()
    assert start(source) == 0 and (volume / "bdl-pipe/.git/HEAD").is_file()
    (volume / "bdl-pipe/result").touch()
    assert start(tmp_path / "none") == 0 and (volume / "bdl-pipe/result").exists()  # a second job continues
    entry = documents("rayjob.yaml")[1]["spec"]["entrypoint"]
    assert f"cd {container['workingDir']}/bdl-pipe &&" in entry

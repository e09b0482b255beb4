"""A network from the user's own file: its outputs, the networks and files that are refused, and its hash."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from bdl_pipe import plugins
from bdl_pipe.config import read, to_mapping
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.networks import Network, NetworkConfig, PythonConfig, build
from bdl_pipe.networks.python_file import python_trunk
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.seeds import Seed
from tests.case_files import cases_of

cases = cases_of(__file__)
TEXT = Path(__file__).with_name("users_networks.txt").read_text()


@dataclass(frozen=True)
class Holder:
    """A config with a network."""

    network: NetworkConfig


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of networks in the working directory, under a name that no other test imports."""
    monkeypatch.chdir(tmp_path)
    name = f"mine_{tmp_path.name}.py"
    Path(name).write_text(TEXT)
    return name


def config(path: str, made: str, **more: object) -> PythonConfig:
    section = {"name": "python", "path": path, "object": made, **more}
    network: PythonConfig = read(PythonConfig, section, "network")
    return network


def theirs(path: str, made: str, shape: tuple[int, ...], **options: object) -> nn.Module:
    module: nn.Module = getattr(plugins.module_of_file(path), made)(shape, **options)
    return module


@pytest.mark.parametrize(
    ("made", "shape", "head"), [("ResNet", (3, 8, 8), "fc"), ("perceptron", (4,), "3"), ("TwoHeads", (4,), "first")]
)
def test_the_network_computes_the_users_own_function_of_its_weights(
    file: str, made: str, shape: tuple[int, ...], head: str
) -> None:
    ours = config(file, made, head=head)
    original, inputs = theirs(file, made, shape), torch.randn(6, *shape)
    last = original.get_submodule(head)
    assert isinstance(last, nn.Linear)
    network = build(ours, shape, last.out_features, rng=Seed(0))
    state = original.state_dict().items()
    weights = {"head" + n[len(head) :] if n.startswith(f"{head}.") else f"trunk.{n}": v for n, v in state}
    network.load_state_dict(weights)
    assert torch.equal(network.eval()(inputs), original.eval()(inputs))
    assert network.width == last.in_features


def test_the_last_linear_layer_is_the_head_and_other_heads_are_refused(file: str) -> None:
    assert build(config(file, "ResNet"), (3, 8, 8), 2, rng=Seed(0)).width == 8
    for name, rule in (
        ("softmax", r"network.object must be the last layer of the network: nothing may follow"),
        ("relu_last", r"must be the last layer of the network: .* a softmax or a ReLU"),  # its outputs are positive
        ("batch_statistics", r"gives a row the same outputs alone as among others"),
    ):
        with pytest.raises(ConfigError, match=rule):
            read_and_build(file, name, (4,))
    with pytest.raises(ConfigError, match=r"head must be a linear layer.*got 'layer9 \(it has fc\)'"):
        build(config(file, "ResNet", head="layer9"), (3, 8, 8), 2, rng=Seed(0))


def read_and_build(path: str, made: str, shape: tuple[int, ...], **more: object) -> Network:
    try:
        return build(config(path, made, **more), shape, 2, rng=Seed(0))
    except ConfigError as error:
        prefix = "" if error.path.startswith("network") else "network."
        raise ConfigError(f"{prefix}{error.path}", error.rule, error.value) from None


def test_weights_depend_on_their_seed_and_leave_torchs_generator_unchanged(file: str) -> None:
    ours = config(file, "ResNet", options={"width": 3})
    before = torch.random.get_rng_state()
    python_trunk(ours, (3, 8, 8), Seed(1).generator())
    assert torch.equal(torch.random.get_rng_state(), before)
    first, again, other = (build(ours, (3, 8, 8), 2, rng=Seed(seed)) for seed in (1, 1, 2))
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(first.trunk.layer1.conv1.weight, other.trunk.layer1.conv1.weight)
    assert first.width == 6, "options are the function's"


@cases("objects", "name shape message")
def test_an_object_that_is_no_network_is_refused(file: str, name: str, shape: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read_and_build(file, name, tuple(shape))
    assert "\n" not in str(raised.value)


@cases("files", "name text message")
def test_a_file_that_cannot_be_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        config(name, "f")


def test_a_file_with_another_hash_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = tmp_path / "ran"  # an absolute path: a worker of a later test also gets this file, and runs in another folder
    Path("pinned.py").write_text(f"import pathlib; pathlib.Path({str(ran)!r}).touch()\ndef f(shape): pass\n")
    with pytest.raises(ConfigError, match=r"must have the SHA-256 0000.*it has changed"):
        config("pinned.py", "f", sha256="0" * 64)
    assert not ran.exists()
    digest = hashlib.sha256(Path("pinned.py").read_bytes()).hexdigest()
    assert config("pinned.py", "f", sha256=digest).sha256 == digest
    assert ran.exists()


def test_a_stored_posterior_names_the_file_and_its_hash(file: str) -> None:
    spec = NetworkSpec(config(file, "ResNet"), (3, 8, 8), 2, "categorical")
    posterior = NetworkDraws.of(spec, [spec.build(Seed(s)).state_dict() for s in range(2)])
    stored = posterior.state()
    named = stored.config["spec"]["network"]
    assert (named["path"], named["sha256"]) == (file, hashlib.sha256(TEXT.encode()).hexdigest())
    inputs = torch.randn(3, 3, 8, 8)
    assert torch.equal(NetworkDraws.from_state(stored).predict(inputs).mean, posterior.predict(inputs).mean)
    named["sha256"] = "0" * 64
    with pytest.raises(UserError, match="it has changed"):
        NetworkDraws.from_state(stored)


def test_a_config_of_a_file_is_written_and_read_back(file: str) -> None:
    section = {"name": "python", "path": file, "object": "perceptron", "options": {"width": 7}}
    holder = read(Holder, {"network": section}, "methods.m")
    assert to_mapping(holder)["network"] == section | {"head": None, "sha256": holder.network.sha256}
    assert read(Holder, to_mapping(holder), "methods.m") == holder

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

TEXT = '''
import torch
from torch import nn


class Block(nn.Module):
    """A basic block, written as torchvision writes it."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        return self.relu(self.bn1(self.conv1(x)) + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self, input_shape, width=4, classes=10):
        super().__init__()
        self.layer1 = Block(input_shape[0], width, 1)
        self.layer2 = Block(width, 2 * width, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        return self.fc(torch.flatten(self.avgpool(self.layer2(self.layer1(x))), 1))


def perceptron(input_shape, width=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, 1))


class TwoHeads(nn.Module):
    def __init__(self, input_shape):
        super().__init__()
        self.last, self.first = nn.Linear(input_shape[0], 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.first(self.last(x).relu())


def softmax(input_shape):
    return nn.Sequential(nn.Linear(input_shape[0], 3), nn.Softmax(-1))


def relu_last(input_shape):
    made = nn.Sequential(nn.Linear(input_shape[0], 1), nn.ReLU())
    nn.init.constant_(made[0].bias, 50.0)
    return made


def batch_statistics(input_shape):
    return nn.Sequential(nn.Linear(input_shape[0], 3), Centred(), nn.Linear(3, 2))


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def noisy(input_shape):
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x + torch.randn_like(x))

    return nn.Sequential(Noisy(input_shape[0], 3), nn.ReLU(), nn.Linear(3, 2))


def branching(input_shape):
    class Branching(nn.ReLU):
        def forward(self, x):
            return x.relu() if x.sum() > 0 else x

    return nn.Sequential(nn.Linear(input_shape[0], 3), Branching(), nn.Linear(3, 2))


def convolutions(input_shape):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())


def fails(input_shape):
    raise RuntimeError("no such thing\\nin two lines")


number = 7


class Pair(nn.Module):
    def __init__(self, input_shape):
        super().__init__()
        self.last = nn.Linear(input_shape[0], 2)

    def forward(self, x):
        return self.last(x), x


def text(input_shape):
    return "a text"
'''


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
    found: PythonConfig = read(PythonConfig, section, "network")
    return found


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
    own, inputs = theirs(file, made, shape), torch.randn(6, *shape)
    last = own.get_submodule(head)
    assert isinstance(last, nn.Linear)
    network = build(ours, shape, last.out_features, rng=Seed(0))
    weights = {
        ("head" + n[len(head) :] if n.startswith(f"{head}.") else f"trunk.{n}"): v for n, v in own.state_dict().items()
    }
    network.load_state_dict(weights)
    assert torch.equal(network.eval()(inputs), own.eval()(inputs))
    assert network.width == last.in_features


def test_the_last_linear_layer_is_the_head_and_other_heads_are_refused(file: str) -> None:
    assert build(config(file, "ResNet"), (3, 8, 8), 2, rng=Seed(0)).width == 8
    with pytest.raises(ConfigError, match=r"network.object must be the last layer of the network: nothing may follow"):
        read_and_build(file, "softmax", (4,))
    with pytest.raises(ConfigError, match=r"must be the last layer of the network: .* a softmax or a ReLU"):
        read_and_build(file, "relu_last", (4,))  # its outputs for the rows of the check are positive
    with pytest.raises(ConfigError, match=r"gives a row the same outputs alone as among others"):
        read_and_build(file, "batch_statistics", (4,))
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


@pytest.mark.parametrize(
    ("made", "shape", "said"),
    [
        ("missing", (4,), "network.object must be a function or a class of"),
        ("number", (4,), "network.object must be a function or a class of"),
        ("fails", (4,), "network.object must make a network: RuntimeError: no such thing"),
        ("Pair", (4,), "network.object must return a network whose output is one tensor, got 'tuple'"),
        ("text", (4,), "network.object must return a torch.nn.Module"),
        ("convolutions", (3, 8, 8), r"network.object must be a linear layer \(nn.Linear\).*it has none"),
        ("ResNet", (4,), r"network.object must take rows of shape \[4\]: RuntimeError"),
        ("noisy", (4,), "network.object must return a network that gives equal rows the same outputs"),
        ("branching", (4,), "network.object must return a network that torch.func.vmap can batch"),
    ],
)
def test_an_object_that_is_no_usable_network_is_refused_in_one_line(
    file: str, made: str, shape: tuple[int, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        read_and_build(file, made, shape)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("none.py", None, r"network.path must be a file that can be imported \(the plugin none.py is missing"),
        ("net.txt", "", r"network.path must be a Python file \(….py\)"),
        ("broken.py", "def f(:\n", r"SyntaxError in line 1"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_text(text)
    with pytest.raises(ConfigError, match=said):
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
    found = read(Holder, {"network": section}, "methods.m")
    assert to_mapping(found)["network"] == section | {"head": None, "sha256": found.network.sha256}
    assert read(Holder, to_mapping(found), "methods.m") == found

"""PreResNet: parameters by hand, sizes by arithmetic, and the network against a plain transcription of its formula."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bdl_pipe.artifacts import State, stack
from bdl_pipe.config import to_mapping
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.networks import Network, PreResNetConfig, build
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.snapshots import BatchNormConfig, Snapshots

from .cases import images, parameters

Statistics = dict[str, tuple[Tensor, Tensor]]  # for each batch norm: mean and unbiased variance of its inputs


def preresnet(depth: int, shape: tuple[int, ...] = (3, 32, 32), outputs: int = 10, seed: int = 0) -> Network:
    return build(PreResNetConfig("preresnet", depth), shape, outputs, rng=Seed(seed))


def by_hand(depth: int, channels: int, classes: int) -> int:
    """The closed form: n blocks of inner width w, the first after u channels, three times.

    First block: 2u + uw + 2w + 9w² + 2w + 4w² and its projection 4uw; later ones have u = 4w and no projection,
    17w² + 12w each. After the last: a norm of u channels and the head.
    """
    n, u, total = (depth - 2) // 9, 16, channels * 9 * 16
    for w in (16, 32, 64):
        total += 2 * u + 5 * u * w + 13 * w**2 + 4 * w + (n - 1) * (17 * w**2 + 12 * w)
        u = 4 * w
    return total + 2 * u + u * classes + classes


@pytest.mark.parametrize(
    ("depth", "channels", "classes", "known"),
    [
        (164, 3, 10, 1_703_258),  # 1.7 million in He et al. 2016
        (164, 3, 100, 1_703_258 + 90 * 257),
        (164, 1, 10, 1_703_258 - 2 * 9 * 16),
        (11, 3, 10, None),
        (29, 4, 7, None),
    ],
)
def test_the_number_of_parameters_equals_the_closed_form(
    depth: int, channels: int, classes: int, known: int | None
) -> None:
    count = parameters(preresnet(depth, (channels, 32, 32), classes))
    assert count == by_hand(depth, channels, classes)
    assert known is None or count == known


def transcribed(w: dict[str, Tensor], x: Tensor, blocks: int, train: bool) -> tuple[Tensor, Statistics]:
    """Figure 4(e) of He et al. 2016 from its weights ``w``: outputs, and statistics of each batch norm's inputs."""
    seen: Statistics = {}

    def normal_relu(x: Tensor, name: str) -> Tensor:
        seen[name] = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=1)
        mean, variance = (seen[name][0], x.var((0, 2, 3), correction=0)) if train else moments(name)
        scale = w[f"{name}.weight"] / (variance + 1e-5).sqrt()
        return ((x - mean[:, None, None]) * scale[:, None, None] + w[f"{name}.bias"][:, None, None]).clamp(min=0)

    def moments(name: str) -> tuple[Tensor, Tensor]:
        return w[f"{name}.running_mean"], w[f"{name}.running_var"]

    def mix(x: Tensor, name: str) -> Tensor:
        return torch.einsum("oc,bchw->bohw", w[f"{name}.weight"][:, :, 0, 0], x)

    x = F.conv2d(x, w["trunk.stem.weight"], padding=1)
    for group, index in itertools.product(range(3), range(blocks)):
        block, stride = f"trunk.group{group}_block{index}", 2 if group and not index else 1
        active = normal_relu(x, f"{block}.norm1")
        inner = normal_relu(mix(active, f"{block}.conv1"), f"{block}.norm2")
        inner = normal_relu(F.conv2d(inner, w[f"{block}.conv2.weight"], None, stride, 1), f"{block}.norm3")
        around = x if index else mix(active[..., ::stride, ::stride], f"{block}.shortcut")
        x = around + mix(inner, f"{block}.conv3")
    features = normal_relu(x, "trunk.norm").mean((2, 3))
    return features @ w["head.weight"].T + w["head.bias"], seen


def moved(network: Network, seed: int) -> dict[str, Tensor]:
    """Return the network's state with scales, shifts and running statistics that are not 1 and 0."""
    state = {k: v.clone() for k, v in network.state_dict().items()}
    generator = Seed(seed).generator()
    for name, value in state.items():
        if value.ndim == 1 and value.is_floating_point():
            positive = name.endswith(("running_var", "norm1.weight", "norm2.weight", "norm3.weight"))
            noise = torch.rand(value.shape, generator=generator, dtype=value.dtype)
            state[name] = 0.5 + noise if positive else noise - 0.5
    return state


@torch.no_grad()
@pytest.mark.parametrize("depth", [11, 20])
@pytest.mark.parametrize("train", [True, False])
def test_the_network_equals_its_formula(depth: int, train: bool) -> None:
    network, batch = preresnet(depth).double().train(train), images(5, 9).double()
    state = moved(network, 3)
    network.load_state_dict(state)
    expected, _ = transcribed(state, batch, depth // 9, train)
    torch.testing.assert_close(network(batch), expected, rtol=1e-9, atol=1e-9)


def test_refreshed_statistics_equal_the_formula(tiny_images: FitData) -> None:
    """At the mean of two snapshots, from one batch of all rows."""
    spec = NetworkSpec(PreResNetConfig("preresnet", 11), (1, 8, 8), 3, "categorical")
    past = [spec.build(Seed(s)).state_dict() for s in (0, 1)]
    trajectory = State(stack(past), {"spec": to_mapping(spec)})
    snapshots = Snapshots(trajectory, tiny_images, BatchNormConfig(None, 1000), Seed(0))
    made = snapshots.state_at(snapshots.flat.mean(0))
    rows, _ = tiny_images.tensors("train")
    _, seen = transcribed({k: v.double() for k, v in made.items()}, rows.double(), 1, True)
    assert len(seen) == 10
    for name, (mean, variance) in seen.items():
        torch.testing.assert_close(made[f"{name}.running_mean"], mean.float(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(made[f"{name}.running_var"], variance.float(), rtol=1e-3, atol=1e-4)
    assert torch.equal(past[1]["trunk.norm.running_mean"], torch.zeros(256))
    assert seen["trunk.norm"][0].abs().max() > 0.1, "the control: stale statistics would have failed"

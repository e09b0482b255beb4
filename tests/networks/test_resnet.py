"""ResNet: parameters by hand, sizes by arithmetic, and the block against a plain transcription of its formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl_pipe.networks import Network, ResNetConfig, build
from bdl_pipe.networks.resnet import Block
from bdl_pipe.seeds import Seed


def resnet(depth: int, shape: tuple[int, ...] = (3, 32, 32), outputs: int = 10, seed: int = 0) -> Network:
    return build(ResNetConfig("resnet", depth), shape, outputs, rng=Seed(seed))


@pytest.fixture(scope="module", params=[18, 50])
def network(request: pytest.FixtureRequest) -> Network:
    """One of each depth, for tests that leave it as it was."""
    return resnet(request.param)


def images(count: int, side: int = 8, channels: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(count, channels, side, side, generator=Seed(seed).generator())


def by_hand(depth: int, channels: int, classes: int) -> int:
    """The closed form. With w the inner width and u the input's, a first block and n − 1 later ones of each group.

    Basic: 9uw + 9w² then 18w² each, norms 4w each. Bottleneck: uw + 9w² + 4w² then 4w² + 9w² + 4w² each,
    norms 12w each. The projection of a first block that changes the shape is uv with a norm 2v, v the output's.
    """
    total, u = 9 * channels * 64 + 2 * 64, 64
    for group, n in enumerate({18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[depth]):
        w = 64 * 2**group
        v = w if depth == 18 else 4 * w
        total += u * v + 2 * v if u != v or group > 0 else 0
        if depth == 18:
            total += 9 * u * w + 9 * w**2 + (n - 1) * 18 * w**2 + n * 4 * w
        else:
            total += u * w + 13 * w**2 + (n - 1) * 17 * w**2 + n * 12 * w
        u = v
    return total + u * classes + classes


@pytest.mark.parametrize(
    ("depth", "channels", "classes", "known"),
    [
        (18, 3, 10, 11_173_962),
        (50, 3, 10, 23_520_842),  # Ritter et al. 2021, table 9
        (18, 1, 10, 11_173_962 - 2 * 9 * 64),
        (50, 3, 100, 23_520_842 + 90 * 2049),
        (18, 4, 7, None),
    ],
)
def test_parameters_by_hand(depth: int, channels: int, classes: int, known: int | None) -> None:
    count = sum(p.numel() for p in resnet(depth, (channels, 32, 32), classes).parameters())
    assert count == by_hand(depth, channels, classes)
    assert known is None or count == known


def test_depth_counts_the_main_paths_layers(network: Network) -> None:
    """Every convolution of a residual, the stem and the head; the projections of shortcuts are not counted."""
    convolutions = [name for name, m in network.named_modules() if isinstance(m, nn.Conv2d)]
    main = [name for name in convolutions if "shortcut" not in name]
    depth = 18 if network.width == 512 else 50
    assert len(main) + 1 == depth
    assert len(convolutions) - len(main) == (3 if depth == 18 else 4)


def norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
    return (x - mean) / (variance + eps).sqrt()


@pytest.mark.parametrize(
    ("before", "layers"),
    [
        (4, [(4, 3, 1), (4, 3, 1)]),
        (4, [(8, 3, 2), (8, 3, 1)]),
        (16, [(4, 1, 1), (4, 3, 1), (16, 1, 1)]),
        (4, [(4, 1, 1), (4, 3, 1), (16, 1, 1)]),
        (8, [(4, 1, 1), (4, 3, 2), (16, 1, 1)]),
    ],
)
def test_block_is_its_formula(before: int, layers: list[tuple[int, int, int]]) -> None:
    """relu(s + bn(W * relu(bn(... W * x)))), s = x or bn(P x); the ReLU is of the sum, not of the residual."""
    block = Block(before, layers, Seed(0).generator()).double().train()
    x = images(3, 8, before).double() * 2 + 1
    weights = [m.weight for m in block.residual if isinstance(m, nn.Conv2d)]
    residual, stride = x, 1
    for index, (weight, (_, side, step)) in enumerate(zip(weights, layers, strict=True)):
        active = residual.clamp(min=0) if index else residual
        residual, stride = norm(F.conv2d(active, weight, None, step, side // 2)), stride * step
    if before == layers[-1][0] and stride == 1:
        around = x
    else:
        mix = block.shortcut[0].weight[:, :, 0, 0]
        around = norm(torch.einsum("oc,bchw->bohw", mix, x[..., ::stride, ::stride]))
    torch.testing.assert_close(block(x), (around + residual).clamp(min=0))
    assert not torch.allclose(block(x), around + residual.clamp(min=0), atol=0.1)


def test_the_stride_of_a_bottleneck_is_in_its_3x3_convolution() -> None:
    strided = [m for m in resnet(50).trunk.modules() if isinstance(m, nn.Conv2d) and m.stride != (1, 1)]
    assert sorted(m.kernel_size for m in strided) == [(1, 1)] * 3 + [(3, 3)] * 3
    for m in strided:
        assert m.kernel_size == (3, 3) or m.out_channels == 2 * m.in_channels  # else it is a shortcut

"""Small networks, random changes of their parameters, and noise for one draw."""

import torch
from torch import Tensor, nn

from bdl_pipe.inducing import Bayesian
from bdl_pipe.seeds import Seed

UNIT = ("ffg_u", "fcg_u", "ensemble_u")
ALL = (*UNIT, "ffg_w", "fcg_w")
RIVALS = ("matrix_normal_w", "k_tied_w", "rank1_w")


def conv_net() -> nn.Sequential:
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    torch.random.set_rng_state(torch_state)
    return net


def five_layers() -> nn.Sequential:
    """Layers 0, 2, 4, 6 and 8 have weights."""
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 2, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shaken(net: Bayesian, by: float = 0.2) -> Bayesian:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += by * torch.randn(parameter.shape, generator=generator)
    return net


def one_noise(net: Bayesian, seed: int = 3) -> dict[str, Tensor]:
    return {k: v[0] for k, v in net.draw(1, Seed(seed).generator()).items()}

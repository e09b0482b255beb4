"""TabM: an ensemble of k perceptrons that share weight matrices and are trained together (Gorishniy et al. 2024).

Gorishniy, Kotelnikov & Babenko 2024, "TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling"; the
layer is BatchEnsemble's (Wen, Tran & Ba 2020, equation 1). In each hidden layer all members share the matrix W [output,
input]; member m has its own scalings of inputs and outputs, r_m and s_m, and its own bias b_m:

    l_m(x) = s_m ∘ (W (r_m ∘ x)) + b_m.

This is an ordinary linear layer with the weight W ∘ (s_m r_mᵀ). Each member has its own last layer. The loss is the
mean of the members' negative log-likelihoods (see ``sgd``) on one batch for all members. So no member is trained to
correct the errors of others, as the negative log-likelihood of the mixture would do. The predictive is the mixture of
the members; early stopping uses its negative log-likelihood on validation rows.

Initial values, as in the paper: r of the first layer is ±1 at random; every other r and every s is 1. Last layers are
drawn for each member. Deviations: weights are initialised like other networks here (He's normal), biases are 0, inputs
have fixed frequencies instead of learned encodings, and r and s have no weight decay, since the decay of W already
applies to all members' weights.

State: a ``NetworkDraws`` of k full networks with the weights W ∘ (s_m r_mᵀ). They take more space than the shared
weights, but need no class of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .. import networks
from ..artifacts import State
from ..config import LATER
from ..data.fitdata import FitData
from ..data.size import Section, Size
from ..errors import require, require_positive
from ..method import Default, Inputs, Method, StageSpec
from ..networks import MlpConfig, NetworkConfig
from ..networks.base import lecun_normal, skip_init
from ..posterior import NetworkDraws, NetworkSpec, Tails, head_of
from ..predictive import Predictive
from ..progress import Report
from ..seeds import Seed
from ..training.fit import fit_epochs
from ..training.learner import Learner, TrainingConfig, Weights
from ..training.likelihood import least_head, with_line

_SCALINGS: Final = ("r", "s")


@dataclass(frozen=True)
class TabmConfig:
    """The section ``methods.tabm`` of params.yaml.

    Attributes:
        network: the architecture of each member, an ``mlp``.
        training: the settings of the training of all members together.
        members: k, the number of members.
        variance_floor: the least variance of regression, see ``methods.sgd``.
        tails: the distribution of the noise of regression, see ``methods.sgd``.
    """

    network: NetworkConfig
    training: TrainingConfig
    members: int
    variance_floor: float | None = None
    tails: Tails = field(default="gaussian", metadata=LATER)

    def __post_init__(self) -> None:
        rule = "must be mlp: members share the weights of linear layers alone"
        require(isinstance(self.network, MlpConfig), "network.name", rule, self.network.name)
        require_positive(self, "members", or_null=("variance_floor",))


@final
class SharedLinear(nn.Module):
    """Linear layers of k members: one weight [output, input], with each member's scalings and bias.

    Attributes:
        weight: W [output, input].
        r, s: the scalings of inputs [member, input] and of outputs [member, output], initially 1.
        bias: the biases [member, output], initially 0.
    """

    def __init__(self, layer: nn.Linear, members: int) -> None:
        """Create the layers with the weight of ``layer``."""
        super().__init__()
        self.weight = layer.weight
        self.r = nn.Parameter(torch.ones(members, layer.in_features))
        self.s = nn.Parameter(torch.ones(members, layer.out_features))
        self.bias = nn.Parameter(torch.zeros(members, layer.out_features))

    def forward(self, inputs: Float[Tensor, "*member batch input"]) -> Float[Tensor, "member batch output"]:
        """Apply the layers to each member's inputs, or to inputs that all members share."""
        scaled = inputs * self.r[:, None]
        # one product for all members, also if several models are trained together
        mapped = F.linear(scaled.flatten(0, 1), self.weight).unflatten(0, scaled.shape[:2])
        return mapped * self.s[:, None] + self.bias[:, None]

    def weights(self) -> Float[Tensor, "member output input"]:
        """Return the weight of each member's equivalent linear layer, W ∘ (s rᵀ)."""
        return self.weight * self.s[:, :, None] * self.r[:, None, :]


@final
class Tabm(Learner):
    """A learner of k networks, with the mean of their losses as its loss."""

    def __init__(self, spec: NetworkSpec, members: int, rng: Seed) -> None:
        """Build the members of ``spec``, with shared weights initialised from ``rng``."""
        super().__init__()
        self.spec = spec
        network = networks.build(spec.network, spec.input_shape, 0, rng=rng)
        layers = [SharedLinear(of, members) if isinstance(of, nn.Linear) else of for of in network.trunk.children()]
        self.trunk = nn.Sequential(*layers)
        generator = rng.fold("members").generator()
        first = self.shared()[0][1]
        with torch.no_grad():
            first.r.copy_(2 * torch.randint(2, first.r.shape, generator=generator) - 1)
        heads = [lecun_normal(skip_init(nn.Linear, network.width, spec.width), generator) for _ in range(members)]
        self.head_weight = nn.Parameter(torch.stack([head.weight.detach() for head in heads]))
        self.head_bias = nn.Parameter(torch.stack([head.bias.detach() for head in heads]))

    def shared(self) -> list[tuple[str, SharedLinear]]:
        """Return the layers with shared weights, each with its place in the trunk."""
        return [(place, of) for place, of in self.trunk.named_children() if isinstance(of, SharedLinear)]

    def outputs(self, inputs: Tensor) -> Float[Tensor, "member batch output"]:
        """Return the outputs of each member."""
        return torch.baddbmm(self.head_bias[:, None], self.trunk(inputs), self.head_weight.mT)

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        return -self.spec.predictive(self.outputs(inputs)).draw_log_prob(targets).mean()

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        return self.spec.predictive(self.outputs(inputs))

    def estimated(self, predicted: Sequence[tuple[Predictive, Tensor]]) -> tuple[float, dict[str, Tensor]]:
        """Return the mixture's score, and the shift and slope of all heads' variance outputs, see ``sgd``."""
        if self.spec.likelihood == "categorical":
            return super().estimated(predicted)
        return least_head(predicted, self.spec.variance_floor)

    def with_estimated(self, weights: Mapping[str, Tensor], estimates: Mapping[str, Tensor]) -> Weights:
        if not estimates:
            return dict(weights)
        weight, bias = with_line(weights["head_weight"], weights["head_bias"], estimates)
        return {**weights, "head_weight": weight, "head_bias": bias}

    def undecayed(self) -> set[str]:
        """Return the names of the scalings."""
        return {f"trunk.{place}.{name}" for place, _ in self.shared() for name in _SCALINGS}

    @torch.no_grad()
    def draws(self) -> dict[str, Tensor]:
        """Return the members as ordinary networks: each entry of a ``state_dict`` of ``spec``, [member, ...]."""
        layers = {f"trunk.{place}.weight": of.weights() for place, of in self.shared()}
        layers |= {f"trunk.{place}.bias": of.bias.clone() for place, of in self.shared()}
        return layers | {"head.weight": self.head_weight.clone(), "head.bias": self.head_bias.clone()}


def fit(
    data: Sequence[FitData], inputs: Sequence[Inputs], config: TabmConfig, *, rngs: Sequence[Seed], report: Report
) -> list[State]:
    """Fit an ensemble to each of ``data``; ``inputs`` are not used.

    Raises:
        ConfigError: ``variance_floor`` or ``tails`` is set for classes.
    """
    classes, floor = data[0].task == "classification", config.variance_floor
    require(floor is None or not classes, "variance_floor", "must be null: classes have no variance", floor)
    likelihood = head_of(data[0].task, config.tails)
    spec = NetworkSpec(config.network, data[0].input_shape, data[0].outputs, likelihood, variance_floor=floor)

    def build(rows: FitData, rng: Seed) -> Learner:
        return Tabm(spec, config.members, rng)

    states = []
    for fitted in fit_epochs(build, data, config.training, rngs=rngs, report=report):
        learner = Tabm(spec, config.members, Seed(0))
        learner.load_state_dict(fitted.state)
        states.append(NetworkDraws(spec, learner.draws()).state())
    return states


def default(size: Size) -> Section:
    """Return the hyperparameters: fewer members of a large network, and half the learning rate for few rows."""
    members, lr = (16, 2.5e-3) if size.small else (8, 5.0e-3)
    if (binned := size.binned) is not None:
        return {"members": members, **binned, **size.floor}
    return {"network": size.network, "members": members, "training": size.training(lr), **size.floor}


TABM = Method(
    name="tabm",
    config=TabmConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit_many=fit, data_parallel=True)},
    search={
        "training.optimiser.lr": (1e-4, 3e-2, "log"),
        "training.optimiser.weight_decay": (1e-6, 1e-1, "log"),
        "members": (4, 64, "integer"),
    },
    # the cost is 2 below 1,000 rows, where a step is mostly overhead, 6 below 10,000 rows, and 9 above
    default=Default(6.0, override=default, suits=lambda size: size.image is None),
)

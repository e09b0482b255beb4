"""The method ``random_coreset``: randomly drawn training rows, with VBPC's students.

Students are fitted like VBPC's: new trunks trained on the coreset, then the closed-form head. The two methods differ
only in the coreset.
"""

from dataclasses import dataclass

from .. import networks
from ..artifacts import State
from ..config import to_mapping
from ..data.fitdata import FitData
from ..errors import require_positive
from ..method import Default, Inputs, Method, StageSpec, Upstream
from ..progress import Report
from ..seeds import Seed
from .shared.descent import with_earlier
from .shared.init import balanced
from .vbpc.posterior import PRECISIONS, SETTINGS, STUDENT_LR, HeadConfig, StudentConfig, default, fit_student


@dataclass(frozen=True)
class RandomCoresetConfig(HeadConfig):
    """The section ``methods.random_coreset`` of params.yaml; the attributes are VBPC's.

    Attributes:
        label_scale: the factor of the labels (onehot − 1/k)/√(k/10). VBPC learns its labels' scale, so a fair
            comparison chooses this factor on validation rows (it affects the NLL, but hardly the accuracy).
    """

    ipc: int
    network: networks.NetworkConfig
    label_scale: float
    student: StudentConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "ipc", "label_scale")


def select(data: FitData, inputs: Inputs, config: RandomCoresetConfig, *, rng: Seed, report: Report) -> State:
    """Select a random class-balanced coreset, in the format of a distilled coreset."""
    coreset = balanced(data, config.ipc, config.label_scale, rng=rng.fold("start"))
    report(1, 1)
    about = {"coreset": "random_coreset", "ipc": config.ipc, "config": to_mapping(config)}
    return with_earlier(inputs, coreset.state(data, about))


RANDOM_CORESET = Method(
    name="random_coreset",
    family="coresets",
    bayesian=True,
    config=RandomCoresetConfig,
    tasks=("classification",),
    stages={
        "coreset": StageSpec(select, needs={"coreset": "earlier"}, in_driver=True),
        "student": StageSpec(fit_student, needs={"coreset": "cyclic"}),
    },
    search={**PRECISIONS, "label_scale": (0.1, 100.0, "log"), **STUDENT_LR},
    settings={**SETTINGS, "rho": 30.0, "label_scale": 8.0},
    default=Default(0.2, "random_coreset", default, suits=lambda size: size.image is not None),
    upstream={"random_coreset": Upstream("coreset", 1, 0.2, default)},
)

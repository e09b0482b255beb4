"""Numbers of a comparison that follow from the data alone: rows, numbers a row or pixels, task.

They are made so that nothing diverges. Inputs lie in (−3, 3) and targets are standardised, so that rates need not
depend on units; gradients are clipped; the variance of a network's noise has a floor; steps are counted rather than
epochs; a chain's step is over rows and the precision of their noise (``scaled``). What diverges all the same is fitted
again at a smaller rate (``pipeline/stages/retry.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bdl_pipe.data.raw import Task

EXACT_GP: Final = 3_000  # training rows up to which the exact process is affordable
COLLAPSED: Final = 100_000  # rows of which a tenth is predicted by exact integrals, at 15 s per 1,000
EXACT_LAYER: Final = 5_000_000  # rows times features of an exact last layer
_SNAPSHOTS: Final = 20
_LONGEST_AFTER: Final = 4  # epochs after the chosen one, in which few rows are learnt by heart
_SHARE: Final = 0.9  # of the rows, which train
_SIDE: Final = 4  # pixels of features
_CORESET: Final = 10  # images of each class
_TAIL: Final = 0.2  # a triangle has none, and a few rows have targets beyond it
_SEEN_TWICE: Final = 5.0  # decay of features whose few rows then fit the noise of an exact layer, too

Section = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """What the numbers follow from.

    Attributes:
        rows: of the file.
        width: numbers a row, as a network sees them.
        pace: a factor of all steps: 1 is what the rules say.
        calibration: the share of the training rows that no fit sees.
        image: (channel, height, width) of images; None: rows of a table.
        fewest: training rows of the smallest class; 0 where it plays no part.
        tested: whether the set brings test rows of its own.
    """

    task: Task
    rows: int
    width: int
    pace: float = 1.0
    calibration: float = 0.0
    image: tuple[int, int, int] | None = None
    fewest: int = 0
    tested: bool = False

    @property
    def train(self) -> int:
        """Return the rows of one split that train."""
        return int((1 if self.tested else _SHARE) * self.rows * (1 - self.calibration))

    @property
    def splits(self) -> int:
        """Return how many splits there are: fewer rows need more."""
        if self.tested:
            return 1
        return 5 if self.rows < 1_000 else 3 if self.rows < 10_000 and self.image is None else 1

    @property
    def batch(self) -> int:
        """Return the rows of a step."""
        if self.image is not None:
            return 32 if self.train < 2_000 else 64
        return 32 if self.train < 2_000 else 128 if self.train < 20_000 else 256 if self.train < 200_000 else 1024

    @property
    def hidden(self) -> list[int]:
        """Return the hidden layers."""
        return [64] if self.train < 1_000 else [64, 64] if self.train < 10_000 else [128, 128]

    def steps(self, usual: int) -> int:
        """Return steps at this pace; ``usual``: of 1,000 to 10,000 rows."""
        scale = 0.5 if self.train < 1_000 else 1.0 if self.train < 10_000 else 2.0
        return max(100, round(self.pace * scale * usual))

    def epochs(self, usual: int) -> int:
        """Return the epochs of about that many steps."""
        return max(1, round(self.steps(usual) / self.steps_per_epoch))

    @property
    def steps_per_epoch(self) -> int:
        """Return the whole batches of an epoch."""
        return max(1, self.train // self.batch)

    @property
    def network(self) -> Section:
        """Return the network of all methods; one without batch norm, which chains and some weights cannot have."""
        return {"name": "mlp", "hidden": self.hidden} if self.image is None else self.convnet(_SIDE)

    def convnet(self, side: int, width: int | None = None) -> Section:
        """Return a ConvNet whose features are at most ``side`` pixels a side."""
        assert self.image is not None
        pixels, blocks = min(self.image[1:]), 1
        while pixels // 2 ** (blocks + 1) >= 1 and pixels / 2**blocks > side:
            blocks += 1
        wide = width or (16 if blocks <= 3 else 8)
        return {"name": "convnet", "width": wide, "blocks": blocks, "norm": "instance", "pool": "max"}

    @property
    def small(self) -> bool:
        """Say whether a network could learn the rows by heart in these steps, so that validation rows end its fit."""
        return self.train < 10_000

    def optimiser(self, lr: float, decay: float | None = None, name: str = "adamw") -> Section:
        """Return how networks descend: in one cycle or, where validation rows end it, at a constant rate."""
        wd = (0.1 if self.small else 0.01) if decay is None else decay
        schedule = {"lr": 0.4 * lr, "schedule": "constant"} if self.small else {"lr": lr, "schedule": "one_cycle"}
        return {"name": name, **schedule, "warmup": 0.3, "weight_decay": wd, "grad_clip_norm": 1.0}

    def early_stopping(self, epochs: int) -> Section | None:
        """Return how the number of epochs is chosen."""
        every = max(1, epochs // 50)
        return {"every": every, "patience": max(every, epochs // 3)} if self.small else None

    def training(
        self, lr: float = 5e-3, steps: int = 2_000, decay: float | None = None, name: str = "adamw"
    ) -> Section:
        """Return a learner's ``training``."""
        epochs, optimiser = self.epochs(steps), self.optimiser(lr, decay, name)
        stopping = self.early_stopping(epochs)
        return {"epochs": epochs, "batch": self.batch, "optimiser": optimiser, "early_stopping": stopping}


def sgd(size: Size) -> Section:
    """Networks that others start from."""
    floor = {"variance_floor": 1.0e-2 if size.train < 1_000 else 1.0e-3} if size.task == "regression" else {}
    return {"network": size.network, "snapshots": 1, "augmentation": None, **size.training(), **floor}


def iterates(size: Size) -> Section:
    """Twenty snapshots at a constant rate: of the epochs after the chosen one, or after the end of a network above."""
    snapshots = _SNAPSHOTS
    if size.small:
        parts = min(size.steps_per_epoch, _SNAPSHOTS)
        after = min(_LONGEST_AFTER, -(-_SNAPSHOTS // parts))
        snapshots = min(snapshots, after * parts)
        more: Section = {"extra_epochs": after}
    else:
        epochs = max(2, size.epochs(600))
        parts = max(1, -(-_SNAPSHOTS // epochs))
        more = {"epochs": epochs, "optimiser": {**size.optimiser(1e-3), "schedule": "constant"}}
    return {**sgd(size), **more, "snapshots": snapshots, "snapshots_per_epoch": parts}


def sgld(size: Size) -> Section:
    """Chains whose step follows from rows and noise."""
    burn_in, kept, count = size.steps(2_000), size.steps(2_000), 50
    every = max(1, kept // count)
    return {
        "target": {
            "network": size.network,
            "prior_precision": 2.0,
            "noise_precision": None,
            "step_size": {"name": "scaled", "value": 0.1},
            "batch": 3 * size.batch,
        },
        "thinning": {"steps": burn_in + count * every, "burn_in": burn_in, "every": every},
    }


def _last_layer(size: Size) -> Section:
    return {"network": size.network, "training": size.training()}


def _weights(size: Size, kind: Mapping[str, Any], draws: int = 30) -> Section:
    return {
        "network": size.network,
        "training": size.training(1e-2, decay=0.0, name="adam"),
        "weights": dict(kind),
        "draws": draws,
        "validation_draws": 10,
        "kl_weight": 0.2,
        "annealing": None,
        **({"noise_variance": 0.1} if size.task == "regression" else {}),
    }


_INDUCING: Final = {"rows": 16, "cols": 16, "lambda_max": 0.3, "lambda_init": 0.1, "prior_scale": 2.0}


def _noise(size: Size) -> Section:
    return {"noise_variance": 0.1} if size.task == "regression" else {}


def sngp(size: Size) -> Section:
    """A trunk of bounded norms, which of images wants group norm and steps of twice the size (methods.sngp)."""
    network = size.network if size.image is None else {**size.network, "norm": "group"}
    return {"network": network, "features": 512, "training": size.training(5e-3 if size.image is None else 1e-2)}


def vbpc(size: Size) -> Section:
    """A coreset of the few numbers that decide: shallow and wide, for the closed form (results/vbpc)."""
    network = {**size.convnet(8, 32), "pool": "average"}
    return {
        "ipc": min(_CORESET, max(1, size.fewest // 3)),
        "network": network,
        "coreset": {"steps": size.steps(400), "batch": min(128, size.train)},
    }


def random_coreset(size: Size) -> Section:
    """Images drawn at random, under the same posterior."""
    return {key: value for key, value in vbpc(size).items() if key != "coreset"}


@dataclass(frozen=True)
class Entry:
    """A method of the comparison.

    Attributes:
        tasks: of which it is a part.
        above: the row that it is made from: ``sgd``, ``iterates``, ``sgld`` or, of the data alone, none.
        numbers: what differs from ``methods.<name>``, of a size.
        fits: whether it can be made at a size.
    """

    tasks: tuple[Task, ...]
    above: str
    numbers: Callable[[Size], Section]
    fits: Callable[[Size], bool] = lambda size: True


_BOTH: Final[tuple[Task, ...]] = ("regression", "classification")
_REGRESSION: Final[tuple[Task, ...]] = ("regression",)
_CLASSIFICATION: Final[tuple[Task, ...]] = ("classification",)
_SUBSPACE: Final = {"dimension": 3, "rows": 1000, "batch": 500}
METHODS: Final[Mapping[str, Entry]] = {
    "deterministic": Entry(_BOTH, "sgd", lambda size: {}),
    "ensemble": Entry(_BOTH, "sgd", lambda size: {}),
    "swa": Entry(_CLASSIFICATION, "iterates", lambda size: {}),
    "swag": Entry(_BOTH, "iterates", lambda size: {"rank": min(10, iterates(size)["snapshots"] - 1), "draws": 20}),
    "pca_ess": Entry(_CLASSIFICATION, "iterates", lambda size: {**_SUBSPACE, "temperature": 10.0, "draws": 10}),
    "pca_vi": Entry(_CLASSIFICATION, "iterates", lambda size: {"dimension": 3, "temperature": 10.0, "draws": 10}),
    "kfac_laplace": Entry(_CLASSIFICATION, "iterates", lambda size: {"temperature": 0.1} if size.image else {}),
    "ciber": Entry(_CLASSIFICATION, "iterates", lambda size: {}),
    "ciber_last": Entry(_REGRESSION, "iterates", lambda size: {"tail": _TAIL}, lambda size: size.rows <= COLLAPSED),
    "ciber_second": Entry(_REGRESSION, "iterates", lambda size: {"tail": _TAIL}, lambda size: size.rows <= COLLAPSED),
    "vbll": Entry(_REGRESSION, "", lambda size: {**_last_layer(size), "layer": {"wishart_scale": 1.0}}),
    "d_vbll": Entry(_CLASSIFICATION, "", _last_layer),
    "g_vbll": Entry(_CLASSIFICATION, "", _last_layer),
    "sngp": Entry(_BOTH, "", sngp),
    "map_blr": Entry(
        _REGRESSION,
        "",
        lambda size: {"network": size.network, "training": size.training(decay=_SEEN_TWICE if size.small else None)},
        lambda size: size.train * (size.hidden[-1] + 1) <= EXACT_LAYER,
    ),
    "gp": Entry(_REGRESSION, "", lambda size: {}, lambda size: size.train <= EXACT_GP),
    "svgp": Entry(
        _REGRESSION,
        "",
        lambda size: {
            "inducing": 200,
            "training": {"epochs": size.epochs(2_000), "batch": size.batch, "optimiser": {"lr": 2e-2}},
        },
        lambda size: size.train > EXACT_GP,
    ),
    "sgld": Entry(_BOTH, "sgld", lambda size: {"student": {"max_draws": 100}}),
    "dark_knowledge": Entry(
        _BOTH,
        "sgld",
        lambda size: {
            "network": size.network,
            "inputs": {"name": "noisy_training", "noise": 0.2},
            "batch": size.batch,
            "steps": size.steps(2_000),
            "optimiser": {"lr": 5.0e-3, "warmup": 0.3, "grad_clip_norm": 1.0},
        },
    ),
    "vbpc": Entry(_CLASSIFICATION, "vbpc", vbpc, lambda size: size.image is not None),
    "random_coreset": Entry(_CLASSIFICATION, "random_coreset", random_coreset, lambda size: size.image is not None),
    "ffg_u": Entry(
        _BOTH, "", lambda size: _weights(size, {"kind": "ffg_u", **_INDUCING, "sd_max": 0.3, "sd_init": 0.05})
    ),
    "ensemble_u": Entry(_BOTH, "", lambda size: _weights(size, {"kind": "ensemble_u", **_INDUCING, "members": 5})),
    "ffg_w": Entry(_BOTH, "", lambda size: _weights(size, {"kind": "ffg_w", "sd_max": 0.3, "sd_init": 0.05})),
    "bnn": Entry(
        _BOTH,
        "",
        lambda size: {
            "network": size.network,
            "stochastic": "all",
            "initial_sd": 0.05,
            "kl_weight": 0.2,
            "draws": 30,
            "training": size.training(decay=0.0),
            **_noise(size),
        },
    ),
    "dropout": Entry(
        _BOTH,
        "",
        lambda size: {"network": size.network, "rate": 0.1, "draws": 30, "training": size.training(), **_noise(size)},
    ),
}


def needed(chosen: Sequence[str], size: Size) -> set[str]:
    """Return the rows that the chosen methods are made from; the iterates of many rows start at a network's end."""
    above = {METHODS[method].above for method in chosen} - {""}
    return above | ({"sgd"} if "iterates" in above and not size.small else set())

"""The size of a data set, and the default network and training that follow from it.

The defaults of methods are functions of a size (``method.Default``) and are chosen so that fits do not diverge: inputs
are in (−3, 3) and targets are standardised, so that learning rates do not depend on units; gradients are clipped; a
network's noise variance has a floor; training is measured in steps, not epochs; a chain's step is divided by the number
of rows and the precision of their noise (``scaled``).
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from ..errors import DataError
from .examples import Task

_FEWEST_RECALIBRATED: Final = 1_000  # training rows
_MOST_CALIBRATION: Final = 2_000  # rows
_FEWEST_NOISY: Final = 100  # training rows that can show how the noise varies
_TRAIN_SHARE: Final = 0.9  # the share of training rows of standard splits
_FEATURE_SIDE: Final = 4  # the most pixels per side of a ConvNet's features
_FEWEST_BINNED: Final = 1_000  # training rows
_FEWEST_MEASURED: Final = 90  # the smallest of 38 tables has 116 rows, 104 of which are training rows
_FEW_ROWS: Final = [0.1, 0.2]  # a perceptron's frequencies; few rows cannot distinguish steep functions from noise
_MANY_ROWS: Final = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]

Section = dict[str, Any]
CONVNET: Final[Section] = {"name": "convnet", "width": 16, "norm": "instance"}  # of methods for images, of any size


@dataclass(frozen=True)
class Size:
    """The properties of a data set from which hyperparameters follow.

    Attributes:
        rows: the number of rows of the file.
        width: the number of network inputs.
        pace: the factor on every number of steps; below 1 if the usual numbers would take too long.
        calibration: the share of the training rows that are excluded from all fits.
        image: (channel, height, width) of images. None: rows of a table.
        fewest: the number of training rows of the smallest class; 0 if unknown.
        has_test: whether the data set has its own test rows.
        numbers: the indices of the network inputs that are numbers or dates, not 0/1, sines or cosines. Empty: unknown.
    """

    task: Task
    rows: int
    width: int
    pace: float = 1.0
    calibration: float = 0.0
    image: tuple[int, int, int] | None = None
    fewest: int = 0
    has_test: bool = False
    numbers: tuple[int, ...] = ()

    @property
    def train(self) -> int:
        """Return the number of training rows of one split."""
        return int((1 if self.has_test else _TRAIN_SHARE) * self.rows * (1 - self.calibration))

    @property
    def tiny(self) -> bool:
        """Return whether it is a table with fewer training rows than any table on which networks were measured."""
        return self.image is None and self.train < _FEWEST_MEASURED

    @property
    def splits(self) -> int:
        """Return the number of splits, which is larger for fewer rows."""
        if self.has_test:
            return 1
        return 5 if self.rows < 1_000 else 3 if self.rows < 10_000 and self.image is None else 1

    @property
    def batch(self) -> int:
        """Return the number of rows of a step."""
        if self.image is not None:
            return 32 if self.train < 2_000 else 64
        return 32 if self.train < 2_000 else 128 if self.train < 20_000 else 256 if self.train < 200_000 else 1024

    @property
    def hidden(self) -> list[int]:
        """Return the widths of the hidden layers."""
        return [64] if self.train < 1_000 else [64, 64] if self.small else [256, 256, 256]

    def recalibrated(self) -> "Size":
        """Return the size with its default share of calibration rows.

        Regression on at least 1,000 training rows excludes a tenth of them, at most 2,000, from all fits: a noise
        variance, even one for each row, describes no heavy tails. Fewer rows are needed by the fit itself: on three
        tables of 442 to 1,236 rows, recalibration on 120 test rows changed the NLL of the others by -0.004 to 0.004.
        """
        if self.task != "regression" or self.image is not None or self.train < _FEWEST_RECALIBRATED:
            return self
        return replace(self, calibration=min(0.1, round(_MOST_CALIBRATION / self.train, 4)))

    def steps(self, usual: int) -> int:
        """Return the number of steps at this pace, where ``usual`` suits 1,000 to 10,000 rows."""
        scale = 0.5 if self.train < 1_000 else 1.0 if self.train < 10_000 else 2.0
        return max(100, round(self.pace * scale * usual))

    def epochs(self, usual: int) -> int:
        """Return the number of epochs with about :meth:`steps` steps."""
        return max(1, round(self.steps(usual) / self.steps_per_epoch))

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of whole batches in an epoch."""
        return max(1, self.train // self.batch)

    def dataset(self, keys: Section, splits: int | None = None) -> Section:
        """Return an entry of ``datasets``.

        Args:
            keys: the keys that depend on the data: ``source``, ``normalise`` and ``targets``.
            splits: the number of splits. None means the default number for the size.
        """
        return {
            **keys,
            "whiten": False,
            "validation": self.validation,
            "fit_rows": "train_and_validation",
            "splits": splits or self.splits,
            "ood": [],
            "corrupted_images": 0,
            "corruptions": "made",
            **({"calibration": self.calibration} if self.calibration else {}),
        }

    @property
    def validation(self) -> float:
        """Return the share of the training rows that are validation rows."""
        return 0.2 if self.rows < 50_000 else 0.1

    @property
    def searched_steps_per_epoch(self) -> int:
        """Return the number of whole batches in an epoch of a search's fits, which do not see validation rows."""
        return max(1, (self.train - round(self.validation * self.train)) // self.batch)

    @property
    def network(self) -> Section:
        """Return the default network. It has no batch norm, which chains and some weight distributions do not support.

        Many rows: only numbers are encoded. On one split of diamonds the NLL is lower by .024 (three networks), and on
        budgetfood equal. On eight smaller tables the NLL of VBLL changes by -.035 to +.116, without a pattern.
        """
        if self.image is not None:
            return self.convnet(_FEATURE_SIDE)
        if self.small:
            return {"name": "mlp", "hidden": self.hidden, "frequencies": _FEW_ROWS}
        some = {"encoded": list(self.numbers)} if 0 < len(self.numbers) < self.width else {}
        return {"name": "mlp", "hidden": self.hidden, "activation": "silu", "frequencies": _MANY_ROWS, **some}

    @property
    def binned(self) -> Section | None:
        """Return network, training and tails for regression on 1,000 to 10,000 training rows of a table; None else.

        Numbers are encoded by 32 quantile bins, the learning rate has one cycle over twice the usual steps, at lengths
        that rise to half of them by factors of two, and the noise is a Student t. On one split of six tables of 1,218
        to 4,695 fitted rows, a sixth of the training rows judged, after recalibration: with .07 to .08 of the steps,
        which take about the time of .26 of the former steps, the NLL of ``tabm`` fell on all six, by .061 on
        saratogahouses, .125 on computers, .016 on wage, .014 on nmes1988, .42 on acs12 and .65 on budgetitaly. With
        .25 for .8 of the steps, ``ensemble`` fell by .074 on saratogahouses. With all steps, ``tabm`` rose by .037 on
        gestation, where 927 rows were fitted.
        """
        if self.task != "regression" or self.image is not None or not self.small or self.train < _FEWEST_BINNED:
            return None
        epochs = self.epochs(4_000)
        optimiser = {"name": "adamw", "lr": 1e-2, "schedule": "one_cycle", "warmup": 0.3, "weight_decay": 0.03}
        training = {
            "epochs": epochs,
            "batch": self.batch,
            "optimiser": {**optimiser, "grad_clip_norm": 1.0},
            "early_stopping": {"every": -(-epochs // 16), "patience": None},
            "noise": "validation",
        }
        network = {"name": "mlp", "hidden": [128, 128], "activation": "silu", "bins": 32}
        return {"network": network, "training": training, "tails": "student"}

    def convnet(self, side: int, width: int | None = None) -> Section:
        """Return a ConvNet with features of at most ``side`` pixels per side.

        Raises:
            DataError: the rows are not images.
        """
        if self.image is None:
            cure = "for a table take another method, such as ensemble"
            raise DataError(f"rows must be images for this method's ConvNet ({cure}), got rows of {self.width} numbers")
        pixels, blocks = min(self.image[1:]), 1
        while pixels // 2 ** (blocks + 1) >= 1 and pixels / 2**blocks > side:
            blocks += 1
        channels = width or (16 if blocks <= 3 else 8)
        return {"name": "convnet", "width": channels, "blocks": blocks, "norm": "instance", "pool": "average"}

    @property
    def noise(self) -> Section:
        """Return the keys for a learned noise in regression; empty for classes."""
        return {"noise_variance": 0.1, **self.noise_of} if self.task == "regression" else {}

    @property
    def noise_of(self) -> Section:
        """Return the key for a noise of each input in regression; empty for classes, or for few rows.

        On left-out rows of seven seen tables of 116 to 4,406 rows (three folds each), it had a lower NLL than one noise
        in 26 of 33 pairs of a table and one of ``bnn``, ``dropout``, ``ffg_u``, ``ffg_w``, ``ensemble_u``: by up to
        .195, at most .059 higher. ``vbll`` fitted to 77 rows was .149 ± .073 worse. On tables of 234 to 4,406 rows,
        ``sngp`` had a lower NLL on seven of seven, by .010 to .422, and ``map_blr`` on six of eight, by up to .134, at
        most .001 higher.
        """
        each = self.task == "regression" and self.train >= _FEWEST_NOISY
        return {"noise": "each input"} if each else {}

    @property
    def floor(self) -> Section:
        """Return the key for the floor of a network's variances, since few rows cannot show that there is no noise."""
        least = 1.0e-2 if self.train < 1_000 else 1.0e-3
        return {"variance_floor": least} if self.task == "regression" else {}

    @property
    def small(self) -> bool:
        """Return True if there are few rows: they suit a small network, a constant learning rate and early stopping."""
        return self.train < 10_000

    @property
    def memorised(self) -> bool:
        """Return True if the default network, with about as many weights as rows, can memorise them in these steps."""
        return self.train < 200_000

    def optimiser(self, lr: float, decay: float | None = None, name: str = "adamw", constant: bool = False) -> Section:
        """Return the optimiser, with a constant learning rate for few rows or if ``constant``, else with one cycle."""
        weight_decay = (0.1 if self.small else 0.01) if decay is None else decay
        fixed: Section = {"lr": 0.4 * lr, "schedule": "constant"}
        schedule = fixed if self.small or constant else {"lr": lr, "schedule": "one_cycle"}
        return {"name": name, **schedule, "warmup": 0.3, "weight_decay": weight_decay, "grad_clip_norm": 1.0}

    def training(
        self,
        lr: float = 5e-3,
        steps: int = 2_000,
        decay: float | None = None,
        name: str = "adamw",
        constant: bool = False,
        regularised: bool = False,
    ) -> Section:
        """Return the section ``training`` of a method.

        The number of epochs is chosen on validation rows if the network could memorise the rows. On three tables of
        14,000 to 24,000 rows with much noise (magic, budgetfood, check_times) 4 to 6 of 30 to 42 epochs were chosen;
        after all epochs the NLL was above a constant predictor's.

        Args:
            constant: whether the learning rate is constant for many rows, too.
            regularised: whether the loss has a divergence from a prior or the network has bounded norms; fits to many
                rows then run all epochs. A fit that runs all epochs estimates its noise on training rows.
        """
        epochs, optimiser = self.epochs(steps), self.optimiser(lr, decay, name, constant)
        every, patience = -(-epochs // 16), None
        if optimiser["schedule"] == "constant":
            every = max(1, epochs // 50)
            patience = max(every, epochs // 3)
        stopping: Section | None = {"every": every, "patience": patience}
        if not self.memorised or (regularised and not self.small):
            stopping = None
        noise = {"noise": "training" if stopping is None else "validation"} if self.task == "regression" else {}
        return {"epochs": epochs, "batch": self.batch, "optimiser": optimiser, "early_stopping": stopping, **noise}

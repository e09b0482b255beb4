"""The method ``stacked``: TabM and boosted trees as one mixture, whose share is found on rows that were left out.

These are the rows of ``share_folds`` folds, each left out of one fit of both parts, or with one fold the validation
rows. The share w of TabM maximises the log score of the parts' mixture on them,

    Σ_i log (w p_tabm(y_i | x_i) + (1 − w) p_trees(y_i | x_i)),    0 ≤ w ≤ 1,

which is concave in w (Wolpert 1992 stacks predictions; Yao, Vehtari, Simpson & Gelman 2018, equation 4, predictive
distributions by the log score of rows that are each left out). Then both parts are fitted to all rows, and keep the
share. If there is one fold and the data keep the validation rows out of the fit, the first fits are the last. Few rows
have folds by default, as a tenth of them would give the share a large error.

TabM chooses its epochs and estimates its noise on the rows that a fit leaves out, which favours its share a little:
these are a few numbers. Targets are standardised with all training rows. If TabM has the tails of a Student t, the
trees get the same estimate: their residuals are a Student t, and its log squared scale is a line in the log variance of
the trees (:func:`.likelihood.least_student_nll`). Trees for quantiles (``boosting.noise``) keep their distribution.

The predictive has ``draws`` equally weighted draws, which joints and disagreement need: TabM's members, each about
equally often, in round(w·draws) of them, and the trees in all others. So the share is rounded by at most 1/(2·draws).
With trees for quantiles the predictive is the mixture of TabM's and the trees', which counts as one draw.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State, under
from ..config import LATER
from ..data import units
from ..data.fitdata import FitData
from ..data.size import Section, Size
from ..data.split_rows import take
from ..derived_predictive import Mixture
from ..errors import ConfigError, require, require_positive
from ..method import Default, Inputs, Method, StageSpec
from ..posterior import NetworkDraws
from ..predictive import Categorical, Continuous, Gaussian, Predictive
from ..progress import Report
from ..seeds import Seed
from ..student_t import StudentT, degrees_of
from ..training.likelihood import least_student_nll
from .boosting import BOOSTING, BoostingConfig, BoostingPosterior, chosen
from .quantiles import Quantiles
from .stored import StoredPosterior
from .tabm import TABM, TabmConfig

_PARTS: Final = ("tabm", "boosting")
_HALVINGS: Final = 50  # of the interval of the share
_ROWS: Final = 1000  # validation rows of one forward pass
_MANY: Final = 1_000  # training rows whose validation rows are enough for the share
_FOLDS: Final = 5
_STEPS: Final = 1000  # reported steps of each part's fit


@dataclass(frozen=True)
class StackedConfig:
    """The section ``methods.stacked`` of params.yaml.

    Attributes:
        tabm: the hyperparameters of the network, see ``methods.tabm``.
        boosting: the hyperparameters of the trees, see ``methods.boosting``; its ``noise`` must not be ``student``.
        draws: the number of equally weighted draws of the predictive.
        share_folds: the number of folds whose left-out rows give the share; 1: the validation rows give it.
    """

    tabm: TabmConfig
    boosting: BoostingConfig
    draws: int
    share_folds: int = field(default=1, metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "draws", "share_folds")
        noise = self.boosting.noise
        require(noise != "student", "boosting.noise", "must be one, each input, best, quantiles or auto", noise)


def best_share(first: Float[Tensor, " row"], second: Float[Tensor, " row"]) -> float:
    """Return the w in [0, 1] that maximises Σ log(w exp(first) + (1 − w) exp(second)), of log densities.

    The derivative falls, so that its root is found by halving. A row whose densities are both 0 plays no part; if there
    is no other row, the share is ½.
    """
    top = torch.maximum(first, second)
    there = top.isfinite()
    a, b = ((log - top)[there].double().exp() for log in (first, second))
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        slope = float(((a - b) / (middle * a + (1 - middle) * b)).sum())
        low, high = (middle, high) if slope > 0 else (low, middle) if slope < 0 else (middle, middle)
    return (low + high) / 2


@final
class StackedPosterior(StoredPosterior):
    """TabM's members and trees, as equally weighted draws."""

    key = "stacked"

    def __init__(self, state: State, device: torch.device | str = "cpu") -> None:
        super().__init__(state, device)
        network, trees = (State(under(f"{name}.", state.tensors), state.config[name]) for name in _PARTS)
        self.network = NetworkDraws.from_state(network, device)
        self.trees = BoostingPosterior(trees, device)
        self._of_network = round(float(state.tensors["share"]) * state.config["draws"])
        self._of_trees = state.config["draws"] - self._of_network
        self._tails: list[float] | None = state.config["tails"]

    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Predictive:
        """Predict transformed inputs, in the units of the transformed targets; ``rng`` is not used."""
        network, trees = self.network.predict(inputs, rng=rng), with_tails(self.trees.predict(inputs), self._tails)
        if isinstance(trees, Quantiles):
            assert isinstance(network, Continuous)
            share = float(self.tensors["share"])
            return network if share == 1 else trees if share == 0 else Mixture([network, trees], [share, 1 - share])
        assert isinstance(network, Categorical | Gaussian | StudentT)
        members = len(network.draw_log_probs if isinstance(network, Categorical) else network.draw_mean)
        index = torch.arange(self._of_network, device=inputs.device) * members // max(1, self._of_network)

        def draws(of_network: Tensor, of_trees: Tensor) -> Tensor:
            return torch.cat([of_network[index], of_trees.expand(self._of_trees, *of_trees.shape[1:])])

        if isinstance(network, Categorical):
            assert isinstance(trees, Categorical)
            return Categorical(draws(network.draw_log_probs, trees.draw_log_probs))
        if isinstance(network, StudentT):
            assert isinstance(trees, StudentT)
            squared = draws(network.squared_scale, trees.squared_scale)
            return StudentT(draws(network.draw_mean, trees.draw_mean), squared, draws(network.degrees, trees.degrees))
        assert isinstance(network, Gaussian) and isinstance(trees, Gaussian)
        return Gaussian(draws(network.draw_mean, trees.draw_mean), draws(network.draw_variance, trees.draw_variance))


def with_tails(trees: Predictive, tails: list[float] | None) -> Predictive:
    """Return the trees' Gaussian as a Student t; ``tails`` is the line of its log squared scale, and the degrees."""
    if tails is None:
        return trees
    assert isinstance(trees, Gaussian)
    shift, slope, degrees = tails
    squared = (shift + slope * trees.draw_variance.log()).exp()
    return StudentT(trees.draw_mean, squared, torch.full_like(squared, degrees))


def fit(data: FitData, inputs: Inputs, config: StackedConfig, *, rng: Seed, report: Report) -> State:
    """Fit both parts, find the share, and fit both parts to all rows; ``inputs`` are not used.

    Raises:
        ConfigError: there is one fold, and there are no validation rows, on which the share would be found.
    """
    config = replace(config, boosting=chosen(config.boosting, data))
    held = _held(data, config.share_folds, rng.fold("search"))
    final = [] if held[0][0] is data else [(data, rng.fold("final"), "final")]
    parts = _Parts(report, len(_PARTS) * (len(held) + len(final)))
    fits = list[list[State]]()
    for rows, address, where in held + final:
        fits.append([])
        for name, method, settings in zip(_PARTS, (TABM, BOOSTING), (config.tabm, config.boosting), strict=True):
            one, seed = method.stages["student"].fit_one, address.fold(name)
            fits[-1].append(
                parts.fit(f"{where}-{name}", lambda part: one(rows, {}, settings, rng=seed, report=part))  # noqa: B023
            )
    share, tails = _share([(states, rows) for states, (rows, _, _) in zip(fits, held, strict=False)], config)
    states = fits[-1]
    tensors = {
        f"{name}.{key}": value for name, of in zip(_PARTS, states, strict=True) for key, value in of.tensors.items()
    }
    about = {"posterior": StackedPosterior.key, "draws": config.draws, "tails": tails}
    about |= {name: of.config for name, of in zip(_PARTS, states, strict=True)}
    return State({**tensors, "share": torch.tensor(share, dtype=torch.float64)}, about)


def _held(data: FitData, folds: int, rng: Seed) -> list[tuple[FitData, Seed, str]]:
    """Return the fits that give the share: their data, whose validation rows they leave out, addresses and names."""
    if folds == 1:
        held = data.search or data
        if not len(held.validation):
            raise ConfigError("methods.stacked", "must have validation rows, on which the share is found", 0)
        return [(held, rng, "search")]
    labels = data.train.targets if data.task == "classification" else None
    address = rng.fold("folds")
    of_row = units.folds_of(data.train.units, len(data.train), labels, folds, ordered=data.ordered, rng=address)
    pairs = units.left_out(of_row, ordered=data.ordered)
    return [
        (
            replace(data, train=take(data.train, rest), validation=take(data.train, out), search=None),
            rng.fold("fold", number),
            f"fold {number}",
        )
        for number, (rest, out) in enumerate(pairs)
    ]


@torch.no_grad()
def _share(fits: Sequence[tuple[Sequence[State], FitData]], config: StackedConfig) -> tuple[float, list[float] | None]:
    """Return the share of TabM, and the trees' line and degrees of freedom, from fits and the rows they left out."""
    predicted = []
    for (tabm, boosting), held in fits:
        network, trees = NetworkDraws.from_state(tabm, held.device), BoostingPosterior(boosting, held.device)
        rows = held.rows("validation", held.device).batches(_ROWS)
        predicted += [(network.predict(inputs), trees.predict(inputs), targets) for inputs, targets in rows]
    tails: list[float] | None = None
    if config.tabm.tails == "student" and config.boosting.noise != "quantiles":
        plain = [(with_tails(of, [0.0, 1.0, 6.0]), targets) for _, of, targets in predicted]
        _, shifts, slopes = least_student_nll(plain, None)
        tails = [float(shifts[0]), float(slopes[0]), float(degrees_of(shifts[1:])[0])]
    scores = [
        torch.cat([of.log_prob(targets) for of, targets in part])
        for part in (
            [(of, targets) for of, _, targets in predicted],
            [(with_tails(of, tails), targets) for _, of, targets in predicted],
        )
    ]
    return best_share(*scores), tails


@final
class _Parts(Report):
    """The report of fits one after the other. A checkpoint has the results of the finished ones."""

    def __init__(self, report: Report, count: int) -> None:
        self._report, self._count, self._name = report, count, ""
        self._done = dict[str, State]()
        last = report.load()
        if last is not None:
            for name, about in last.config["finished"].items():
                self._done[name] = State(under(f"finished.{name}.", last.tensors), about)
        self._number = 0

    def fit(self, name: str, fit: Callable[[Report], State]) -> State:
        """Return the result of the fit ``name``, which a checkpoint may have."""
        self._name = name
        if name not in self._done:
            self._done[name] = fit(self)
        self._number += 1
        return self._done[name]

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        done = self._number * _STEPS + step * _STEPS // max(1, total)
        self._report(done, self._count * _STEPS, metrics)

    def due(self) -> bool:
        return self._report.due()

    def save(self, state: State) -> None:
        tensors = {f"part.{key}": value for key, value in state.tensors.items()}
        for name, of in self._done.items():
            tensors |= {f"finished.{name}.{key}": value for key, value in of.tensors.items()}
        about: dict[str, Any] = {"finished": {name: of.config for name, of in self._done.items()}}
        self._report.save(State(tensors, {**about, "name": self._name, "part": state.config}))

    def load(self) -> State | None:
        last = self._report.load()
        if last is None or last.config["name"] != self._name:
            return None
        return State(under("part.", last.tensors), last.config["part"])


def default(size: Size) -> Section:
    """Return the hyperparameters of both parts, as ``add`` writes them for the two methods, and folds of few rows."""
    assert TABM.default is not None
    parts = {"tabm": {**TABM.settings, **TABM.default.override(size)}, "boosting": dict(BOOSTING.settings)}
    return parts | ({"share_folds": _FOLDS} if size.train < _MANY else {})


STACKED = Method(
    name="stacked",
    config=StackedConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit)},
    search={"tabm.training.optimiser.lr": (1e-4, 3e-2, "log"), "boosting.learning_rate": (1e-2, 3e-1, "log")},
    settings={"draws": 32},
    # both parts are fitted twice, or to each fold of few rows
    default=Default(14.0, override=default, suits=lambda size: size.image is None and not size.tiny),
)

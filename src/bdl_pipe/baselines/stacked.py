"""The method ``stacked``: TabM and boosted trees as one mixture, whose shares are found on rows that were left out.

These are the rows of ``share_folds`` folds, each left out of one fit of all parts, or with one fold the validation
rows. The shares w_k of the parts maximise the log score of their mixture on these rows,

    Σ_i log Σ_k w_k p_k(y_i | x_i),    w_k ≥ 0, Σ_k w_k = 1,

which is concave in w (Wolpert 1992 stacks predictions; Yao, Vehtari, Simpson & Gelman 2018, equation 4, predictive
distributions by the log score of rows that are each left out). Then the parts with a share above 0 are fitted to all
rows, and keep the shares. If there is one fold and the data keep the validation rows out of the fit, the first fits are
the last. Few rows have folds by default, as a tenth of them would give the shares a large error.

The parts are TabM, trees and, if ``second`` has its hyperparameters, a second TabM: of two networks, one can be
regularised more than the other, and the shares find which one the rows need.

TabM chooses its epochs and estimates its noise on the rows that a fit leaves out, which favours its share a little:
these are a few numbers. Targets are standardised with all training rows. If TabM has the tails of a Student t, the
trees get the same estimate: their residuals are a Student t, and its log squared scale is a line in the log variance of
the trees (:func:`.likelihood.least_student_nll`). Trees for quantiles (``boosting.noise``) keep their distribution.

The predictive has ``draws`` equally weighted draws, which joints and disagreement need: each part has its share of
them, rounded by less than 1/draws, and a network's members are used about equally often. With trees for quantiles the
predictive is the mixture of the parts', which counts as one draw. A part with all of the share keeps its own draws.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State, under
from ..config import LATER
from ..data import units
from ..data.fitdata import FitData
from ..data.size import Section, Size
from ..data.split_rows import take
from ..derived_predictive import Mixture, best_shares
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

_TREES: Final = "boosting"
_PARTS: Final = {"tabm": TABM, "second": TABM, _TREES: BOOSTING}  # the trees last
_STEPS_OF_SHARES: Final = 5_000  # a share comes to 0 no faster than 1 over the steps
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
        share_folds: the number of folds whose left-out rows give the shares; 1: the validation rows give them.
        second: the hyperparameters of a second network, with the ``tails`` of ``tabm``. null: there is none.
    """

    tabm: TabmConfig
    boosting: BoostingConfig
    draws: int
    share_folds: int = field(default=1, metadata=LATER)
    second: TabmConfig | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "draws", "share_folds")
        noise = self.boosting.noise
        require(noise != "student", "boosting.noise", "must be one, each input, best, quantiles or auto", noise)
        if self.second is not None:
            tails = self.second.tails
            require(tails == self.tabm.tails, "second.tails", f"must be those of tabm ({self.tabm.tails})", tails)

    @property
    def parts(self) -> dict[str, tuple[Method, TabmConfig | BoostingConfig]]:
        """Return each part's method and hyperparameters, the trees last."""
        given = {name: getattr(self, name) for name in _PARTS}
        return {name: (_PARTS[name], settings) for name, settings in given.items() if settings is not None}


@final
class StackedPosterior(StoredPosterior):
    """The networks' members and the trees, as equally weighted draws."""

    key = "stacked"

    def __init__(self, state: State, device: torch.device | str = "cpu") -> None:
        super().__init__(state, device)
        named = {
            name: State(under(f"{name}.", state.tensors), state.config[name]) for name in _PARTS if name in state.config
        }
        self.parts = {name: _part(name, of, device) for name, of in named.items()}
        self._shares = state.tensors["shares"].tolist()
        # cumulative shares are rounded, so that the counts have the right sum
        ends = [round(float(end) * state.config["draws"]) for end in np.cumsum([0.0, *self._shares])]
        self._counts = [end - start for start, end in pairwise(ends)]
        self._tails: list[float] | None = state.config["tails"]

    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Predictive:
        """Predict transformed inputs, in the units of the transformed targets; ``rng`` is not used."""
        parts = _predicted(self.parts, inputs, self._tails)
        if len(parts) == 1:
            return parts[0]
        if isinstance(parts[-1], Quantiles):
            return Mixture([part for part in parts if isinstance(part, Continuous)], self._shares)

        def draws(of: Callable[[Any], Tensor]) -> Tensor:
            """Return each part's draws in its count, its members about equally often."""
            each = list[Tensor]()
            for part, count in zip(parts, self._counts, strict=True):
                values = of(part)
                index = torch.arange(count, device=inputs.device) * len(values) // max(1, count)
                each.append(values[index])
            return torch.cat(each)

        if isinstance(parts[0], Categorical):
            return Categorical(draws(lambda part: part.draw_log_probs))
        if isinstance(parts[0], StudentT):
            scale, degrees = draws(lambda part: part.squared_scale), draws(lambda part: part.degrees)
            return StudentT(draws(lambda part: part.draw_mean), scale, degrees)
        return Gaussian(draws(lambda part: part.draw_mean), draws(lambda part: part.draw_variance))


def _part(name: str, state: State, device: torch.device | str) -> NetworkDraws | BoostingPosterior:
    return BoostingPosterior(state, device) if name == _TREES else NetworkDraws.from_state(state, device)


def _predicted(
    parts: Mapping[str, NetworkDraws | BoostingPosterior], inputs: Tensor, tails: list[float] | None
) -> list[Predictive]:
    """Return each part's predictive, the trees' with ``tails``."""
    each = {name: part.predict(inputs) for name, part in parts.items()}
    return [with_tails(of, tails) if name == _TREES else of for name, of in each.items()]


def with_tails(trees: Predictive, tails: list[float] | None) -> Predictive:
    """Return the trees' Gaussian as a Student t; ``tails`` is the line of its log squared scale, and the degrees."""
    if tails is None:
        return trees
    assert isinstance(trees, Gaussian)
    shift, slope, degrees = tails
    squared = (shift + slope * trees.draw_variance.log()).exp()
    return StudentT(trees.draw_mean, squared, torch.full_like(squared, degrees))


def fit(data: FitData, inputs: Inputs, config: StackedConfig, *, rng: Seed, report: Report) -> State:
    """Fit all parts, find their shares, and fit the used parts to all rows; ``inputs`` are not used.

    Raises:
        ConfigError: there is one fold, and there are no validation rows, on which the shares would be found.
    """
    config = replace(config, boosting=chosen(config.boosting, data))
    held = _held(data, config.share_folds, rng.fold("search"))
    again = held[0][0] is not data
    parts = _Parts(report, len(config.parts) * (len(held) + again))

    def fit_part(name: str, rows: FitData, address: Seed, where: str) -> State:
        method, settings = config.parts[name]
        one = method.stages["student"].fit_one
        return parts.fit(f"{where}-{name}", lambda part: one(rows, {}, settings, rng=address.fold(name), report=part))

    fits = [{name: fit_part(name, *of) for name in config.parts} for of in held]
    shares, tails = _shares([(states, rows) for states, (rows, _, _) in zip(fits, held, strict=True)], config)
    used = [name for name, share in zip(config.parts, shares, strict=True) if share]
    if again:
        final = {name: fit_part(name, data, rng.fold("final"), "final") for name in used}
    else:
        final = {name: fits[0][name] for name in used}
    tensors = {f"{name}.{key}": value for name, of in final.items() for key, value in of.tensors.items()}
    about = {"posterior": StackedPosterior.key, "draws": config.draws, "tails": tails}
    about |= {name: of.config for name, of in final.items()}
    return State({**tensors, "shares": torch.from_numpy(shares[shares > 0])}, about)


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
def _shares(
    fits: Sequence[tuple[Mapping[str, State], FitData]], config: StackedConfig
) -> tuple[Float[np.ndarray, " part"], list[float] | None]:
    """Return the parts' shares, and the trees' line and degrees of freedom, from fits and the rows they left out."""
    predicted = list[tuple[list[Predictive], Tensor]]()
    for states, held in fits:
        posteriors = {name: _part(name, of, held.device) for name, of in states.items()}
        for inputs, targets in held.rows("validation", held.device).batches(_ROWS):
            predicted.append((_predicted(posteriors, inputs, None), targets))
    tails: list[float] | None = None
    if config.tabm.tails == "student" and config.boosting.noise != "quantiles":
        plain = [(with_tails(of[-1], [0.0, 1.0, 6.0]), targets) for of, targets in predicted]
        _, shifts, slopes = least_student_nll(plain, None)
        tails = [float(shifts[0]), float(slopes[0]), float(degrees_of(shifts[1:])[0])]
    logs = [
        torch.stack([part.log_prob(targets) for part in (*networks, with_tails(trees, tails))])
        for (*networks, trees), targets in predicted
    ]
    return best_shares(torch.cat(logs, 1).double().cpu().numpy(), _STEPS_OF_SHARES), tails


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
    """Return the hyperparameters of the parts, as ``add`` writes them for the two methods, and folds of few rows.

    Regression on 1,000 to 10,000 training rows has a second network, regularised more.
    """
    assert TABM.default is not None
    parts = {"tabm": {**TABM.settings, **TABM.default.override(size)}, "boosting": dict(BOOSTING.settings)}
    if size.train < _MANY:
        return {**parts, "share_folds": _FOLDS}
    return {**parts, "second": _regularised(parts["tabm"])} if size.binned is not None else parts


def _regularised(tabm: Section) -> Section:
    training = tabm["training"]
    slow = {**training, "optimiser": {**training["optimiser"], "lr": 3e-3}}
    return {**tabm, "network": {**tabm["network"], "dropout": 0.1}, "training": slow}


STACKED = Method(
    name="stacked",
    config=StackedConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit)},
    search={"tabm.training.optimiser.lr": (1e-4, 3e-2, "log"), "boosting.learning_rate": (1e-2, 3e-1, "log")},
    settings={"draws": 32},
    # all parts are fitted twice, or to each fold of few rows; a second network at least doubles it
    default=Default(14.0, override=default, suits=lambda size: size.image is None and not size.tiny),
)

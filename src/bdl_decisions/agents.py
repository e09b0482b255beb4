"""Agents: a registered method, and the rule by which its posterior chooses."""

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from bdl_pipe import config
from bdl_pipe.config import nearest
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.raw import FEWEST_ROWS
from bdl_pipe.data.size import Size
from bdl_pipe.errors import DataError, NothingToFit, require
from bdl_pipe.estimators import given
from bdl_pipe.estimators.fitted import Fitted, fit_parts
from bdl_pipe.estimators.plan import known, plan
from bdl_pipe.estimators.targets import Targets
from bdl_pipe.fitting import Run
from bdl_pipe.seeds import Seed

from .beliefs import PosteriorBelief
from .rules import RULES, Rule

_ROOTS: Final = 2**31 - 1


@dataclass(frozen=True)
class Agent:
    """An entry of a decision's ``agents``.

    Attributes:
        rule: a key of :data:`.rules.RULES`.
        method: the name of a registered method. If empty, nothing is fitted, and the rule uses no posterior.
        updates: whether the posterior learns row by row between refits (see :mod:`.recursive`); an error if it cannot.
        width: the number of standard deviations in the rule ``ucb``.
        region: in the search of a function of the unit cube, the largest distance in each input of a point from the
            best one so far. None: none. A network's uncertainty grows towards the corners of the cube, where such a
            search stays if there are many inputs.
        pace: a factor for the number of steps of all fits, as in the estimators.
        override: hyperparameters that replace the method's, as in the estimators.
        made_from: the upstream run of the method, as in the estimators.
        upstream: key or method of an upstream run -> hyperparameters that replace its own, as in the estimators.
    """

    rule: str
    method: str = ""
    updates: bool = False
    width: float = 1.0
    region: float | None = None
    pace: float = 0.1
    override: dict[str, Any] = field(default_factory=dict)
    made_from: str | None = None
    upstream: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.rule in RULES, "rule", f"must be a rule{nearest(self.rule, RULES)}", self.rule)
        needed = self.choosing.needs_posterior
        require(bool(self.method) or not needed, "method", "must be named: the rule asks a posterior", self.method)
        require(self.width >= 0, "width", "must be >= 0", self.width)
        require(self.region is None or 0 < self.region <= 1, "region", "must be in (0, 1] or null", self.region)
        require(self.pace > 0, "pace", "must be > 0", self.pace)
        require(bool(self.method) or not self.updates, "updates", "must be false without a method", self.updates)

    @property
    def choosing(self) -> Rule:
        """Return the rule."""
        return RULES[self.rule]

    def check(self, task: str) -> None:
        """Check that the method predicts ``task`` and that the rule is for it.

        Raises:
            UserError: the method is unknown or cannot predict ``task``, or the rule is for the other kind of targets.
        """
        kinds = {"classification": "classes", "regression": "numbers"}
        is_for = self.choosing.of in ("any", kinds[task])
        rules = [name for name, rule in RULES.items() if rule.of in ("any", kinds[task])]
        require(is_for, "rule", f"must be one for {kinds[task]} ({', '.join(rules)})", self.rule)
        if self.method:
            known(self.method, task)  # type: ignore[arg-type]

    def fit(
        self, rows: np.ndarray, targets: np.ndarray, classes: tuple[str, ...], rng: Seed, *, standardised: bool = True
    ) -> PosteriorBelief | None:
        """Fit the method to rows in memory with the defaults for their size, as in the estimators.

        Targets are never transformed to logarithms, so that a Gaussian over functions stays Gaussian.

        Args:
            rows: numbers [row, column], or images uint8 [row, channel, height, width].
            targets: float64 [row], or labels int64 [row] with the names ``classes``.
            standardised: whether numbers are standardised by these rows.

        Returns:
            The belief, or None without a method.

        Raises:
            NothingToFit: the targets are equal, or were after rows were left out for validation, or no input varies.
            UserError: the method cannot predict the task, or there are too few rows.
            Diverged: the fit diverged even at its smallest rates.
        """
        if not self.method:
            return None
        if len(targets) and (targets == targets[0]).all():
            raise NothingToFit(f"{self.method}: must be fitted to targets that differ, got {len(targets)} equal ones")
        if len(rows) < FEWEST_ROWS:
            raise DataError(f"{self.method}: must be fitted to at least {FEWEST_ROWS} rows, got {len(rows)}")
        answers = Targets(targets if classes else targets.reshape(-1, 1).astype(np.float64), classes)
        columns = None
        if rows.ndim > 2:
            profile = given.image_profile(rows, answers)
        else:
            table = given.table_of(rows.astype(np.float64))
            profile = given.table_profile(table, answers, None, numbers=True)
            columns = [table.column_names.index(name) for name in profile.raw.features]  # without constant columns
        size = replace(profile.size(), has_test=True, pace=self.pace)
        runs = self.plan(size)
        entry = size.dataset(profile.dataset(log=False), splits=1)
        scaling = {} if classes else {"targets": "standardise" if standardised else "none"}
        typed = config.read(DatasetConfig, {**entry, **scaling}, "data")
        parts, _ = fit_parts(profile.raw, typed, runs, rng.integer() % _ROOTS, cross=False, device="cpu")
        about = {"seed": rng.integer() % _ROOTS, "run": runs[-1].key}
        predictor = Fitted(parts, about, {"classes": classes}).predictor()
        return PosteriorBelief(predictor, self.method, updates=self.updates, columns=columns)

    def plan(self, size: Size) -> list[Run]:
        """List the upstream runs of a fit at this size."""
        return plan(self.method, size, override=self.override, made_from=self.made_from, upstream=self.upstream)

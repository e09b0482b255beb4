"""The settings of a layer's weight distribution."""

import math
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from ..config import LATER
from ..errors import require

Kind = Literal["ffg_u", "fcg_u", "ensemble_u", "ffg_w", "fcg_w", "matrix_normal_w", "k_tied_w", "rank1_w"]
MIXTURES: Final = ("ensemble_u", "rank1_w")  # draws use the members in turn
INDEPENDENT: Final = ("ffg_w", "matrix_normal_w", "k_tied_w")  # layers may draw their outputs
PRUNED: Final = ("ffg_u", "fcg_u", "ensemble_u", "ffg_w")  # a fitted posterior of these kinds can be pruned


@dataclass(frozen=True)
class WeightConfig:
    """The settings of a layer's distribution. Initial values are from Ritter et al. 2021 (appendix J.2).

    Attributes:
        kind: Gaussian with independent entries (ffg), Gaussian with a full covariance (fcg), or points (ensemble), in
            the space of inducing weights (_u) or of the weights (_w). matrix_normal_w and k_tied_w have independent
            entries with a matrix of standard deviations of low rank; rank1_w has fixed weights with random factors.
        rows: the number of rows of U (_u).
        cols: the number of columns of U (_u).
        lambda_max: the upper bound of λ, at most 1 in the paper (_u). null sets no bound. With 0, q(W | U) is its mean,
            without R(λ).
        sd_max: the upper bound of the standard deviations of q(U) or q(W), or of r and s (rank1_w). null sets no bound.
            0 gives a MAP estimate (ffg_u).
        members: K, the number of members (ensemble_u) or of components of the mixture (rank1_w).
        spread: the standard deviation of the members' initial differences (ensemble_u) or of the initial means of r and
            s around 1 (rank1_w).
        lambda_init: the initial λ (_u).
        d_init: the initial diagonals of D (_u).
        sd_init: the initial standard deviation of q(U) or q(W). null gives √1e-3 for ffg_u and 1e-4 for kinds _w, as
            printed in J.2, and 1e-3 for fcg_u, which J.2 does not name. The published code starts ffg_u at 1e-3. For
            rank1_w it is the factors', and null gives √1e-3, for the dropout rate 1e-3 of its authors' code.
        prior_scale: σ·√d_in, where d_in counts the bias as an input.
        prior_sd: σ, which replaces ``prior_scale``. With null, ``prior_scale`` sets σ.
        full_limit: the largest number of weights of a full covariance (fcg).
        rank: k, the rank of the matrix of standard deviations (k_tied_w).
        factor_sd: the prior standard deviation of r and s around 1 (rank1_w).
    """

    kind: Kind = "ffg_u"
    rows: int = 64
    cols: int = 64
    lambda_max: float | None = 0.03
    sd_max: float | None = 0.1
    members: int = 5
    spread: float = 0.1
    lambda_init: float = 1e-3
    d_init: float = 1e-3
    sd_init: float | None = None
    prior_scale: float = 1.0
    prior_sd: float | None = None
    full_limit: int = 4096
    rank: int = field(default=2, metadata=LATER)
    factor_sd: float = field(default=0.05, metadata=LATER)

    def __post_init__(self) -> None:
        require(self.kind in get_args(Kind), "kind", f"must be one of {', '.join(get_args(Kind))}", self.kind)
        positive = (
            "rows",
            "cols",
            "members",
            "lambda_init",
            "d_init",
            "prior_scale",
            "full_limit",
            "rank",
            "factor_sd",
        )
        for name in positive:
            require(getattr(self, name) > 0, name, "must be > 0", getattr(self, name))
        require(self.spread >= 0, "spread", "must be >= 0", self.spread)
        require(self.prior_sd is None or self.prior_sd > 0, "prior_sd", "must be > 0 or null", self.prior_sd)
        require(self.start_sd > 0, "sd_init", "must be > 0 or null", self.sd_init)
        _below("lambda_max", self.lambda_max, "lambda_init", self.lambda_init, zero=True)
        if self.kind != "ensemble_u":
            _below("sd_max", self.sd_max, "sd_init", self.start_sd, zero=self.kind == "ffg_u")

    @property
    def start_sd(self) -> float:
        """Return the initial standard deviation."""
        if self.sd_init is not None:
            return self.sd_init
        if self.kind in ("ffg_u", "rank1_w"):
            return math.sqrt(1e-3)
        return 1e-4 if self.kind.endswith("_w") else 1e-3


def _below(name: str, cap: float | None, start: str, value: float, *, zero: bool) -> None:
    allowed = cap is None or cap > value or (zero and cap == 0)
    require(allowed, name, f"must be > {start} ({value}){', 0' if zero else ''} or null", cap)

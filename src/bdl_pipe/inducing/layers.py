"""The distribution of one layer's weight matrix W [out, in]; a bias is its last column.

:class:`Weights` is the interface of all kinds. :class:`Inducing` implements the kinds in the space of inducing weights
(Ritter et al. 2021): Z_r, Z_c, the diagonals of D_r and D_c, one λ and q(U). Kinds in the space of W are in
``weightspace``.

Global inducing weights (:class:`Shared`): all layers' U are drawn together from a smaller matrix (appendix H). The
layers' whitened U, stacked along the rows to [Σ rows, cols], have the prior N(0, I) and are augmented like a
layer's W, with σ = 1. This gives correlations between layers for one more Z_r, Z_c, D_r, D_c and λ, and a single q(U).
"""

from abc import ABC, abstractmethod
from typing import Any, Final, NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .config import WeightConfig
from .matheron import Noise as ConditionalNoise
from .matheron import Side, conditional_draw, conditional_kl, conditional_mean, side
from .posteriors import Factorised, FullCovariance, InducingPosterior, Members, Noise, capped, free, log_capped
from .sparse import Kept, whole

_DRAWN: Final = ("posterior.mean", "posterior.members")  # parameters on which factors do not depend
_PLACES: Final = ("kept_out.packed", "kept_in.packed")  # buffers on which factors depend


class Weights(nn.Module, ABC):
    """A distribution of W."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a draw's standard normal numbers, by name."""

    @abstractmethod
    def factors(self) -> Any:
        """Return the tensors that all draws share, differentiable in the parameters."""

    @abstractmethod
    def forward(self, noise: Noise, factors: Any) -> Float[Tensor, "out in"]:
        """Return a draw of W, given the result of :meth:`factors`."""

    @abstractmethod
    def centre(self) -> Float[Tensor, "out in"]:
        """Return E[W]."""

    @abstractmethod
    def kl(self, rows: int | None) -> Float[Tensor, ""]:
        """Return the KL from the prior in nats.

        Args:
            rows: N of β = min(1, N/d_in), the factor of R(λ); a convolution has a row for each place. With None, β = 1.
        """

    def importance(self) -> dict[str, Float[Tensor, "row column"]]:
        """Return the importance of each entry of the prunable matrices, by name; pruning removes the least first."""
        return {}

    def keep(self, masks: dict[str, Bool[Tensor, "row column"]]) -> None:
        """Remove permanently all entries of the matrices of :meth:`importance` that are not in ``masks``."""
        assert not masks, f"{type(self).__name__} cannot be pruned"


class Factors(NamedTuple):
    """The tensors that all draws of an :class:`Inducing` layer share, in the weights' type."""

    row: Side
    column: Side
    rescale: Float[Tensor, ""]
    spread: Tensor | None


@final
class Inducing(Weights):
    """The distribution W | U for U ~ q(U).

    Attributes:
        z_out, z_in: Z_r [rows, out] and Z_c [cols, in]; initially N(0, 1/rows) and N(0, 1/cols). After pruning they are
            vectors of the kept entries; :meth:`z` returns the matrices.
        kept_out, kept_in: the patterns of kept entries; None if all entries are kept.
        log_d_out, log_d_in: the logs of the diagonals of D_r and D_c.
        free_lambda: λ before its upper bound is applied; None if the bound is 0.
        posterior: q(U); None if each draw gets U as an argument (:class:`Shared`).
        scale: σ.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        config: WeightConfig,
        scale: float,
        posterior: InducingPosterior | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        (out, columns), rows, cols = shape, config.rows, config.cols
        self._shape, self._inducing = (out, columns), (rows, cols)
        self.z_out = nn.Parameter(torch.randn(rows, out, generator=generator) / rows**0.5)
        self.z_in = nn.Parameter(torch.randn(cols, columns, generator=generator) / cols**0.5)
        self.kept_out: Kept | None = None
        self.kept_in: Kept | None = None
        self.log_d_out = nn.Parameter(torch.full((rows,), free(config.d_init, None)))
        self.log_d_in = nn.Parameter(torch.full((cols,), free(config.d_init, None)))
        self._cap = config.lambda_max
        start = None if self._cap == 0 else torch.tensor(free(config.lambda_init, self._cap))
        self.free_lambda = None if start is None else nn.Parameter(start)
        self.posterior, self.scale = posterior, scale

    @property
    def rescale(self) -> Float[Tensor, ""]:
        """Return λ."""
        return self.z_out.new_zeros(()) if self.free_lambda is None else capped(self.free_lambda, self._cap)

    def z(self) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "cols in"]]:
        """Return Z_r and Z_c; removed entries are 0."""
        return whole(self.z_out, self.kept_out), whole(self.z_in, self.kept_in)

    def importance(self) -> dict[str, Float[Tensor, "row column"]]:
        """Return the magnitudes of the entries of Z_r and Z_c (Ritter et al. 2021, appendix K)."""
        return {name: z.detach().abs() for name, z in zip(("out", "in"), self.z(), strict=True)}

    def keep(self, masks: dict[str, Bool[Tensor, "row column"]]) -> None:
        (z_out, z_in), out, columns = self.z(), Kept(masks["out"]), Kept(masks["in"])
        self.z_out, self.z_in = nn.Parameter(out.of(z_out.detach())), nn.Parameter(columns.of(z_in.detach()))
        self.kept_out, self.kept_in = out, columns

    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = {} if self.posterior is None else self.posterior.shapes()
        if self.free_lambda is None:
            return shapes
        (out, columns), (rows, cols) = self._shape, self._inducing
        return shapes | {"weight": (out, columns), "outer": (rows, cols), "inner": (rows, min(cols, columns))}

    def factors(self) -> Factors:
        z_out, z_in = self.z()
        row, column = side(z_out, self.log_d_out.exp()), side(z_in, self.log_d_in.exp())
        dtype = self.z_out.dtype
        spread = None if self.posterior is None else self.posterior.spread()
        return Factors(Side(*(t.to(dtype) for t in row)), Side(*(t.to(dtype) for t in column)), self.rescale, spread)

    def forward(
        self, noise: Noise, factors: Factors, inducing: Float[Tensor, "rows cols"] | None = None
    ) -> Float[Tensor, "out in"]:
        """Return a draw of W; ``inducing`` is U if the layer has no q(U) of its own."""
        if inducing is None:
            assert self.posterior is not None
            inducing = self.posterior(noise, factors.spread)
        if self.free_lambda is None:
            return conditional_mean(inducing, factors.row, factors.column, self.scale)
        drawn = ConditionalNoise(noise["weight"], noise["outer"], noise["inner"])
        return conditional_draw(inducing, factors.row, factors.column, factors.rescale, self.scale, drawn)

    def centre(self, inducing: Float[Tensor, "rows cols"] | None = None) -> Float[Tensor, "out in"]:
        if inducing is None:
            assert self.posterior is not None
            inducing = self.posterior.centre()
        factors = self.factors()
        return conditional_mean(inducing, factors.row, factors.column, self.scale)

    def kl(self, rows: int | None) -> Float[Tensor, ""]:
        out, columns = self._shape
        of_inducing = self.z_out.new_zeros(()) if self.posterior is None else self.posterior.kl()
        if self.free_lambda is None:
            return of_inducing
        share = 1.0 if rows is None else min(1.0, rows / columns)
        log_rescale = log_capped(self.free_lambda, self._cap)
        return of_inducing + share * conditional_kl(self.rescale, log_rescale, out * columns)


def inducing_posterior(config: WeightConfig, generator: torch.Generator) -> InducingPosterior:
    """Return q(U) for a kind of inducing weights; the caller has checked its size."""
    shape = (config.rows, config.cols)
    if config.kind == "ffg_u":
        return Factorised(shape, config.start_sd, config.sd_max, generator)
    if config.kind == "fcg_u":
        return FullCovariance(shape, config.start_sd, config.sd_max, generator)
    assert config.kind == "ensemble_u"
    return Members(shape, config.members, config.spread, generator)


@final
class FactorCache:
    """A cache of factors by layer; the cache of a copied network starts empty.

    Cached factors are valid while the parameters, and the kept entries of pruned matrices, equal a copy of their old
    values (``torch.equal``, one pass over Z). Version counters would be cheaper to compare, but they miss writes
    through ``.data``, by a replayed graph, or to reused memory.
    """

    def __init__(self) -> None:
        self._cached: dict[str, tuple[list[Tensor], Any]] = {}

    def get(self, key: str, layer: Weights) -> Any:
        """Return the layer's factors; compute them only if the parameters have changed."""
        sources: list[Tensor] = [p for n, p in layer.named_parameters() if n not in _DRAWN]
        sources += [b for n, b in layer.named_buffers() if n in _PLACES]
        copies, factors = self._cached.get(key, ([], None))
        pairs = zip(copies, sources, strict=False)
        same = all(a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in pairs)
        if not same or len(copies) != len(sources):
            copies, factors = [p.detach().clone() for p in sources], layer.factors()
            self._cached[key] = copies, factors
        return factors

    def __deepcopy__(self, _: dict[int, Any]) -> "FactorCache":
        return FactorCache()

    def __reduce__(self) -> tuple[type["FactorCache"], tuple[()]]:
        return FactorCache, ()


@final
class Shared(nn.Module):
    """The joint distribution of the layers' U, each [rows, cols] with the same cols."""

    def __init__(self, rows: dict[str, int], cols: int, config: WeightConfig, generator: torch.Generator) -> None:
        """Create the distribution from the ``rows`` of each layer's U, by key, and the global matrix's ``config``."""
        super().__init__()
        self._rows = dict(rows)
        stacked = (sum(rows.values()), cols)
        self.weights = Inducing(stacked, config, 1.0, inducing_posterior(config, generator), generator)

    def forward(self, noise: Noise, factors: Factors) -> dict[str, Tensor]:
        """Return a draw of every layer's U, by key."""
        return self._split(self.weights(noise, factors))

    def centre(self) -> dict[str, Tensor]:
        """Return E[U] of every layer, by key."""
        return self._split(self.weights.centre())

    def kl(self) -> Float[Tensor, ""]:
        """Return the KL from the prior in nats."""
        return self.weights.kl(None)

    def _split(self, stacked: Float[Tensor, "total cols"]) -> dict[str, Tensor]:
        return dict(zip(self._rows, stacked.split(list(self._rows.values()), -2), strict=True))

"""Fitted posteriors as beliefs: the answers of each posterior class, or an error of one line."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bdl_pipe.errors import UserError
from bdl_pipe.joint_predictive import GaussianFunctions, JointCategorical
from bdl_pipe.posterior import GaussianPosterior, Predictor
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.seeds import Seed
from bdl_pipe.student_t import StudentT
from bdl_pipe.trajectory.linearised import LinearisedFunctions

from .question import Points
from .recursive import RecursivePosterior, recursive

_AT_ONCE: Final = 2_000_000  # the most numbers in a batch of candidates, to limit memory in long blocks of rounds


@final
class PosteriorBelief:
    """The belief of a fitted posterior; :class:`.question.Belief` documents its answers.

    Attributes:
        learns: whether the belief uses one-row updates.

    Args:
        method: names the posterior in errors.
        updates: whether to use one-row updates.
        columns: the places of the posterior's columns among all columns of the rows. None means all columns.

    Raises:
        UserError: ``updates`` is set, and the posterior does not support it.
    """

    def __init__(
        self, predictor: Predictor, method: str, *, updates: bool = False, columns: Sequence[int] | None = None
    ) -> None:
        self._predictor, self._method, self._columns = predictor, method, columns
        self._updated: RecursivePosterior | None = recursive(predictor.posterior) if updates else None
        if updates and self._updated is None:
            raise self._no_updates

    @property
    def learns(self) -> bool:
        return self._updated is not None

    def values(self, candidates: Points, draws: int, rng: Seed) -> Float[Tensor, "draw group candidate"]:
        """Draw functions; groups have different functions.

        Raises:
            UserError: the posterior has one draw and no Gaussian over functions.
        """
        parts = []
        for number, part in enumerate(self._in_parts(candidates)):
            address = rng.fold("part", number)
            functions = self._functions(part, address)
            if functions is None:
                means = self._draws(part, address)
                which = torch.randint(len(means), (draws, len(part)), generator=address.fold("which").generator())
                drawn = means[which, torch.arange(len(part))]
            else:  # each group draws its own parts of a mixture
                count = len(functions.mean)
                drawn = functions.sample(draws * count, address)[..., 0]  # part by part within each repetition
                if count > 1:
                    which = torch.randint(count, (draws, drawn.shape[1]), generator=address.fold("which").generator())
                    rows = torch.arange(draws)[:, None] * count + which
                    drawn = drawn[rows, torch.arange(drawn.shape[1])]
            parts.append(self._own_units(drawn))
        return torch.cat(parts, 1)

    def drawn(self, rng: Seed) -> Callable[[Points], Float[Tensor, " row"]] | None:
        """Draw one function: by the last layer's weights, or as one of the posterior's draws.

        Raises:
            UserError: see :meth:`values`.
        """
        posterior = self._updated or recursive(self._predictor.posterior)
        if posterior is not None:
            function = posterior.drawn(rng)
        elif isinstance(self._predictor.posterior, GaussianPosterior):
            return None
        else:
            share = float(torch.rand((), generator=rng.fold("which").generator()))

            def function(inputs: Tensor) -> Tensor:
                means = self._means(inputs, rng)
                return means[int(share * len(means))]

        def of_rows(rows: Points) -> Tensor:
            return self._own_units(function(self._inputs(self._fitted(rows)[None])[0]))

        return of_rows

    def gaussian(
        self, candidates: Points, rng: Seed
    ) -> tuple[Float[Tensor, "group candidate"], Float[Tensor, "group candidate candidate"]] | None:
        """Return mean and covariance of the functions at each group, float64; None if they are not one Gaussian."""
        functions = self._functions(self._fitted(candidates), rng)
        if functions is None or len(functions.mean) > 1:
            return None
        scale = self._scale
        return self._own_units(functions.mean[0, ..., 0]), scale**2 * functions.covariance[0, :, 0].double()

    def parts(self, candidates: Points, rng: Seed) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations of the marginals.

        Raises:
            UserError: see :meth:`values`.
        """
        means, deviations = [], []
        for number, part in enumerate(self._in_parts(candidates)):
            functions = self._functions(part, rng.fold("part", number))
            if functions is None:
                mean = self._draws(part, rng.fold("part", number))
                sd = torch.zeros_like(mean)
            else:
                mean, variance = functions.mean[..., 0], functions.covariance[:, :, 0].diagonal(dim1=-2, dim2=-1)
                sd = variance.clamp_min(0).sqrt()
            means.append(self._own_units(mean))
            deviations.append(sd.double() * self._scale)
        return torch.cat(means, 1), torch.cat(deviations, 1)

    def means(self, candidates: Points, rng: Seed) -> Float[Tensor, "group candidate"]:
        """Return the mean of the predictive, which every posterior of regression has."""
        if self._updated is not None:
            return self.parts(candidates, rng)[0].mean(0)
        means = []
        for number, part in enumerate(self._in_parts(candidates)):
            flat = part.reshape(-1, *part.shape[2:])
            predictive = self._predictor.transformed(flat, rng=rng.fold("part", number))
            means.append(self._own_units(predictive.mean[:, 0].unflatten(0, part.shape[:2])))
        return torch.cat(means)

    @torch.no_grad()
    def log_probs(self, rows: np.ndarray, rng: Seed) -> Float[Tensor, "row class"]:
        predictive = self._predictor.transformed(self._fitted(rows), rng=rng)
        assert isinstance(predictive, Categorical)
        return predictive.log_probs.double()

    @torch.no_grad()
    def class_draws(self, rows: np.ndarray, draws: int, rng: Seed) -> Float[Tensor, "draw row class"]:
        """Return log class probabilities under the posterior's own draws, or under ``draws`` from its Gaussian.

        Raises:
            UserError: the joint of several rows is the product of its marginals, or has no draws.
        """
        joint = self._predictor.joint(self._fitted(rows)[None], rng=rng, draws=draws)
        if not isinstance(joint, JointCategorical) or joint.is_product:
            raise self._refusal("draws of class probabilities")
        return joint.draw_log_probs[:, 0].double()

    @torch.no_grad()
    def learn(self, rows: np.ndarray, targets: np.ndarray) -> None:
        """Update the belief by observed rows.

        Raises:
            UserError: the belief does not learn row by row.
        """
        if self._updated is None:
            raise self._no_updates
        transform = self._predictor.transform
        self._updated.learn(transform.inputs(self._fitted(rows)), transform.targets(targets.reshape(-1, 1)))

    @property
    def _no_updates(self) -> UserError:
        return UserError(f"{self._method}: has no one-row updates: its posterior must be refitted (updates: false)")

    def _functions(self, candidates: Points, rng: Seed) -> GaussianFunctions | None:
        """Return the Gaussian over functions at each group; None if the posterior holds none."""
        posterior = self._updated or self._predictor.posterior
        if not isinstance(posterior, GaussianPosterior | RecursivePosterior):
            return None
        functions = posterior.functions(self._inputs(candidates), rng=rng)
        if isinstance(functions, LinearisedFunctions):  # a network that predicts a variance has a second output
            outputs = functions.mean.shape[-1]
            covariance = functions.covariance[:, ::outputs, ::outputs]
            return GaussianFunctions(functions.mean[None, ..., :1], covariance[None, :, None], torch.zeros(1, 1), False)
        if not isinstance(functions, GaussianFunctions):
            raise self._refusal("draws of functions")
        return functions

    def _draws(self, candidates: Points, rng: Seed) -> Float[Tensor, "draw group candidate"]:
        inputs = self._inputs(candidates)
        return self._means(inputs.flatten(0, 1), rng).unflatten(1, inputs.shape[:2])

    def _means(self, inputs: Tensor, rng: Seed) -> Float[Tensor, "draw row"]:
        predictive = self._predictor.posterior.predict(inputs, rng=rng)
        if not isinstance(predictive, Gaussian | StudentT) or len(predictive.draw_mean) == 1:
            raise self._refusal("draws of functions")
        return predictive.draw_mean[..., 0]

    def _inputs(self, candidates: Points) -> Tensor:
        flat = candidates.reshape(-1, *candidates.shape[2:])
        return self._predictor.transform.inputs(flat).unflatten(0, candidates.shape[:2])

    @property
    def _scale(self) -> float:
        scale = self._predictor.transform.scale
        assert scale is not None
        return float(scale[0])

    def _own_units(self, values: Tensor) -> Tensor:
        return self._predictor.transform.own_units(values[..., None])[..., 0]

    def _fitted(self, rows: Any) -> Any:
        return rows if self._columns is None else rows[..., self._columns]

    def _in_parts(self, candidates: Points) -> list[Points]:
        candidates = self._fitted(candidates)
        count = min(len(candidates), max(1, -(-math.prod(candidates.shape) // _AT_ONCE)))
        return [candidates[part[0] : part[-1] + 1] for part in np.array_split(np.arange(len(candidates)), count)]

    def _refusal(self, what: str) -> UserError:
        return UserError(
            f"{self._method}: must give {what}, but its posterior has one draw or no Gaussian over functions"
        )

"""A fitted posterior of regression as a model of BoTorch, for users of its acquisition functions and optimisers.

    model = botorch_model(BayesianRegressor("vbll").fit(rows, values))
    acquisition = LogExpectedImprovement(model, best_f=values.max())

Only this module imports BoTorch (``pip install botorch``), which is no dependency.
"""

from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from bdl_pipe.errors import UserError, require
from bdl_pipe.estimators.regressor import BayesianRegressor
from bdl_pipe.seeds import Seed

from .beliefs import PosteriorBelief


class PosteriorModel(Model):
    """A model of one output, in the targets' own units, without observation noise.

    A posterior with one Gaussian over functions gives a ``GPyTorchPosterior``; all others an ``EnsemblePosterior`` of
    functions, each at all points of a batch together.

    Args:
        belief: the fitted posterior.
        draws: the number of functions of a posterior that is a mixture of several Gaussians.
        rng: the address of all draws, which are the same in every call, so that acquisition functions are smooth.
    """

    num_outputs = 1
    batch_shape = torch.Size([])

    def __init__(self, belief: PosteriorBelief, draws: int = 128, rng: Seed = Seed(0)) -> None:
        super().__init__()
        self._belief, self._draws, self._rng = belief, draws, rng

    def posterior(
        self,
        X: Tensor,  # BoTorch's name
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | Callable[[Posterior], Posterior] | None = None,
        **_: Any,
    ) -> Posterior:
        """Return the posterior of the function at points [..., q, column].

        Raises:
            UserError: observation noise is asked for, or the posterior has one draw and no Gaussian over functions.
        """
        if observation_noise is not False:
            raise UserError("observation_noise must be False: the model's functions have no noise, got True")
        groups = X.reshape(-1, *X.shape[-2:])
        gaussian = self._belief.gaussian(groups, self._rng)
        answer: Posterior
        if gaussian is None:
            values = self._belief.values(groups, self._draws, self._rng)  # [draw, group, q]
            answer = EnsemblePosterior(values.movedim(0, 1).reshape(*X.shape[:-2], len(values), X.shape[-2], 1))
        else:
            mean, covariance = (part.reshape(*X.shape[:-2], *part.shape[1:]) for part in gaussian)
            jitter = 1e-8 * covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-12)
            eye = torch.eye(X.shape[-2], dtype=covariance.dtype, device=covariance.device)
            answer = GPyTorchPosterior(MultivariateNormal(mean, covariance + jitter[..., None, None] * eye))
        return answer if posterior_transform is None else posterior_transform(answer)


def botorch_model(fitted: BayesianRegressor, *, draws: int = 128) -> PosteriorModel:
    """Return the model of a fitted estimator of one target.

    Raises:
        UserError: the estimator has several targets, or its targets were fitted as logarithms.
    """
    predictor = fitted.fitted_.predictor()
    scale = predictor.transform.scale
    require(scale is not None and len(scale) == 1, "targets", "must be one column of numbers for a model of BoTorch")
    require(not predictor.transform.log, "targets", "must not be logarithms: set log=False", "logarithms")
    return PosteriorModel(PosteriorBelief(predictor, fitted.method), draws)

"""BoTorch's own loop as rules: its exact GP, its acquisition functions and its optimiser, as in its documentation.

    pip install botorch==0.18.1
    plugins: [benchmarks/decisions/botorch_rules.py]
    agents: {botorch_logei: {rule: botorch_logei}}

``SingleTaskGP`` is fitted to all evaluations before each batch, with standardised values, inputs in the unit cube, its
default kernel and its priors (Hvarfner et al. 2024). ``botorch_logei`` maximises LogEI for one point and qLogEI for a
batch (10 restarts, 512 raw samples), or takes the best rows of a table; ``botorch_thompson`` maximises drawn paths
(Wilson et al. 2020) over 2,000 Sobol points.
"""

import warnings
from typing import Any

import numpy as np
import torch

from bdl_decisions import Belief, Question, register_rule
from bdl_pipe.errors import UserError
from bdl_pipe.seeds import Seed

_RESTARTS, _RAW, _SOBOL = 10, 512, 2000


def _model(question: Question) -> tuple[Any, torch.Tensor]:
    """Return a fitted SingleTaskGP and the standardised values."""
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    assert question.known is not None
    rows, values = (torch.from_numpy(np.asarray(part)).double() for part in question.known)
    values = ((values - values.mean()) / values.std())[:, None]
    model = SingleTaskGP(rows, values)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model, values


def logei(belief: Belief | None, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Propose the points with the largest LogEI, or qLogEI."""
    from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
    from botorch.optim import optimize_acqf

    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(rng.integer() % 2**31)
        model, values = _model(question)
        one = question.count == 1
        best = LogExpectedImprovement(model, values.max()) if one else qLogExpectedImprovement(model, values.max())
        columns = question.candidates.shape[2]
        low, high = (np.zeros(columns), np.ones(columns)) if question.box is None else question.box
        bounds = torch.from_numpy(np.stack([low, high])).double()
        points, _ = optimize_acqf(best, bounds, question.count, num_restarts=_RESTARTS, raw_samples=_RAW)
    return points.detach().numpy()


def thompson(belief: Belief | None, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Propose the best of Sobol points under one drawn path each."""
    from botorch.sampling.pathwise import draw_matheron_paths

    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(rng.integer() % 2**31)
        model, _ = _model(question)
        columns = question.candidates.shape[2]
        points = torch.quasirandom.SobolEngine(columns, scramble=True, seed=rng.integer() % 2**31).draw(_SOBOL).double()
        with torch.no_grad():
            paths = draw_matheron_paths(model, sample_shape=torch.Size([question.count]))
            values = paths(points)
        return points[values.reshape(question.count, -1).argmax(1)].numpy()


def logei_of_rows(belief: Belief | None, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the candidate with the largest LogEI, or a batch one by one by qLogEI."""
    from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
    from botorch.optim import optimize_acqf_discrete

    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(rng.integer() % 2**31)
        model, values = _model(question)
        rows = torch.from_numpy(question.candidates[0]).double()
        if question.count == 1:
            with torch.no_grad():
                return LogExpectedImprovement(model, values.max())(rows[:, None]).argmax()[None, None].numpy()
        batch = qLogExpectedImprovement(model, values.max())
        points, _ = optimize_acqf_discrete(batch, question.count, choices=rows, unique=True)
    return (points[:, None] == rows).all(-1).double().argmax(1)[None].numpy()


def _only_continuous(belief: Belief | None, question: Question, width: float, rng: Seed) -> np.ndarray:
    raise UserError("rule: must be for a function of the unit cube (botorch_thompson proposes points)")


register_rule("botorch_logei", logei_of_rows, propose=logei, needs_posterior=False)
register_rule("botorch_thompson", _only_continuous, propose=thompson, needs_posterior=False)

"""The methods of bdl-pipe for ScoringBench: copy this file into its folder scoringbench/univariate/wrappers.

Its documentation asks for a subclass of ``ProbabilisticWrapper`` with ``fit``, ``predict`` and
``predict_distribution``, whose import of a third party's package is lazy, which replaces non-finite inputs and leaves
out rows without a finite target. Then add to its files:

- ``wrappers/__init__.py``: ``("BdlPipeWrapper", "scoringbench_wrapper")`` in the list of lazy imports and in
  ``__all__``;
- ``models.py``: ``"bdl_pipe_0_2_multi_swag": lambda: BdlPipeWrapper(method="multi_swag")``;
- ``requirements_models.txt``: ``bdl-pipe``.
"""

from __future__ import annotations

import numpy as np

from .base import DistributionPrediction, ProbabilisticWrapper

COUNT = 200  # quantiles of a prediction, at the levels (k + 1/2)/200


class BdlPipeWrapper(ProbabilisticWrapper):
    """A method of bdl-pipe, Bayesian deep learning for tables; MIT licence.

    Args:
        method: a name of ``bdl_pipe.METHODS`` for regression, such as ``multi_swag``, ``tabm`` or ``vbll``.
        random_state: the seed.
        params: further parameters of ``bdl_pipe.BayesianRegressor``.
    """

    def __init__(self, method: str = "multi_swag", random_state: int = 42, **params: object) -> None:
        self.method, self.random_state, self.params = method, random_state, params
        self._model = None

    def fit(self, X, y) -> BdlPipeWrapper:
        from bdl_pipe import BayesianRegressor

        targets = np.asarray(y, dtype=np.float64).reshape(-1)
        known = np.isfinite(targets)
        self._set_train_range(targets[known])
        model = BayesianRegressor(self.method, random_state=self.random_state, **self.params)
        self._model = model.fit(_finite(X)[known], targets[known])
        return self

    def predict(self, X) -> np.ndarray:
        return np.asarray(self._model.predict(_finite(X)), dtype=np.float64).reshape(-1)

    def predict_distribution(self, X) -> DistributionPrediction:
        predictive = self._model.predict_dist(_finite(X)).predictive
        levels = (np.arange(COUNT) + 0.5) / COUNT
        quantiles = np.stack([predictive.quantile(float(level))[:, 0].double().numpy() for level in levels], axis=1)
        mean = predictive.mean[:, 0].double().numpy()
        return DistributionPrediction.from_multi_quantile(quantiles, levels, mean, train_range=self._y_train_range)


def _finite(X) -> np.ndarray:
    """Return the inputs as numbers, with 0 for values that are not finite after ScoringBench's own imputation."""
    return np.nan_to_num(np.asarray(X, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)

"""Metrics of predictives. A metric returns a state (sum, count), and the states of several workers add up.

Every function takes a :class:`~bdl_pipe.predictive.Predictive`; its ``log_prob`` and ``mean`` average over the draws.
Docstrings state which functions need the single draws, such as mutual information. All logarithms are natural, and all
means are per row.
"""

from .classification import Bins as Bins
from .classification import accuracy as accuracy
from .classification import batch_nll as batch_nll
from .classification import bins_of as bins_of
from .classification import brier as brier
from .classification import log_likelihood as log_likelihood
from .classification import nll as nll
from .cost import COSTS as COSTS
from .joint import GroupLogProbs as GroupLogProbs
from .metric import Mean as Mean
from .metric import Metric as Metric
from .metric import StoredMetric as StoredMetric
from .registered import METRICS as METRICS
from .registered import register_metric as register_metric
from .registered import registered as registered
from .regression import covered as covered
from .regression import crps as crps
from .regression import interval as interval
from .regression import noise_variance as noise_variance
from .regression import out_of_reach as out_of_reach
from .regression import squared_error as squared_error
from .separation import DETECTION as DETECTION
from .separation import detection as detection

"""How well a score separates a data set's own inputs (*in*) from other inputs (*out*).

The score is higher for inputs of the data's own distribution. AUROC; AUPR-In takes *in* as the positive class, AUPR-Out
takes *out* (Hendrycks & Gimpel 2017), both as average precision; FPR95 is the share of *out* that is accepted at the
threshold that accepts at least 95 % of *in* (Liang et al. 2018).
"""

import numpy as np

from .metric import Metric


def detection(score_in: np.ndarray, score_out: np.ndarray) -> dict[str, float]:
    """Return ``auroc``, ``aupr_in``, ``aupr_out``, ``fpr95`` of scores [n_in] and [n_out]."""
    from sklearn.metrics import average_precision_score, roc_auc_score  # here: it takes half a second in each stage

    scores = np.concatenate([score_in, score_out])
    inside = np.concatenate([np.ones(len(score_in)), np.zeros(len(score_out))])
    return {
        "auroc": float(roc_auc_score(inside, scores)),
        "aupr_in": float(average_precision_score(inside, scores)),
        "aupr_out": float(average_precision_score(1 - inside, -scores)),
        "fpr95": false_positive_rate(score_in, score_out, 0.95),
    }


def false_positive_rate(score_in: np.ndarray, score_out: np.ndarray, accepted: float) -> float:
    """Return the share of *out* at or above the highest threshold that at least ``accepted`` of *in* reach."""
    needed = int(np.ceil(accepted * len(score_in) - 1e-9))  # 0.95·20 is 19 and not 20
    threshold = np.sort(score_in)[::-1][needed - 1]
    return float((score_out >= threshold).mean())


DETECTION = (  # the metrics of an OOD score, which :func:`detection` computes
    Metric("auroc", "AUROC", "area under the ROC curve", better=+1),
    Metric("aupr_in", "AUPR-In", "average precision of the data set's own inputs", better=+1),
    Metric("aupr_out", "AUPR-Out", "average precision of the other inputs", better=+1),
    Metric("fpr95", "FPR95", "share of the other inputs accepted when 95 % of the own inputs are", better=-1),
)

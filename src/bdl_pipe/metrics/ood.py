"""Telling inputs of the data's own distribution (*in*) from others (*out*) by one score.

The score is higher for *in*. AUROC; AUPR-In takes *in* as the positive class, AUPR-Out takes *out*
(Hendrycks & Gimpel 2017), both as average precision; FPR95 is the share of *out* that is accepted at
the threshold that accepts at least 95 % of *in* (Liang et al. 2018).
"""

import numpy as np


def detection(score_in: np.ndarray, score_out: np.ndarray) -> dict[str, float]:
    """``auroc``, ``aupr_in``, ``aupr_out``, ``fpr95`` of scores [n_in] and [n_out]."""
    from sklearn.metrics import average_precision_score, roc_auc_score  # half a second of imports in each stage

    scores = np.concatenate([score_in, score_out])
    inside = np.concatenate([np.ones(len(score_in)), np.zeros(len(score_out))])
    return {
        "auroc": float(roc_auc_score(inside, scores)),
        "aupr_in": float(average_precision_score(inside, scores)),
        "aupr_out": float(average_precision_score(1 - inside, -scores)),
        "fpr95": false_positive_rate(score_in, score_out, 0.95),
    }


def false_positive_rate(score_in: np.ndarray, score_out: np.ndarray, accepted: float) -> float:
    """The share of *out* at or above the highest threshold that at least ``accepted`` of *in* reach."""
    needed = int(np.ceil(accepted * len(score_in) - 1e-9))  # 0.95·20 is 19 and not 20
    threshold = np.sort(score_in)[::-1][needed - 1]
    return float((score_out >= threshold).mean())

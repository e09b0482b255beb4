"""Estimators of scikit-learn's kind: the same methods, defaults and bits as the pipeline's, for arrays and frames."""

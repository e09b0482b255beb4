"""A file of one's own in, a data set and its runs in params.yaml out: what ``add`` and ``remove`` are made of."""

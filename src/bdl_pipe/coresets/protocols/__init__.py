"""Protocols under which any coreset can be judged, whoever made it.

``network``: a network trained on it (``coreset_nn``), or its trunk with a ridge head (``coreset_krr``); ``chains``: an
average over Markov chains on it (``coreset_sgmcmc``); ``closed_form``: VBPC's posterior (``coreset_vi``).
"""

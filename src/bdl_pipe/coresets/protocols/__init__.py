"""Protocols that fit a posterior to any coreset, so that coresets of different methods can be compared.

``network``: a network trained on the coreset (``coreset_nn``), or its trunk with a ridge head (``coreset_krr``);
``chains``: an average over Markov chains (``coreset_sgmcmc``); ``closed_form``: VBPC's posterior (``coreset_vi``).
"""

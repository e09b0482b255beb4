"""A posterior of the user's own module in one call: :func:`~.bayesianise.bayesianise`.

The module becomes a network of the library (:mod:`.module`, :mod:`.trunk`), and its loader becomes rows
(:mod:`.rows`), so that each method runs as in the pipeline.
"""

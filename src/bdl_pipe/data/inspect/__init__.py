"""Describe a user's table or images, and find faults that would spoil a fit, before anything is fitted.

``table.inspect_table`` and ``images.inspect_images`` read all rows and return a ``profile.Profile``, whose ``source``
reads the same rows for a fit. Data that cannot be used are a DataError, which names the cure: an argument of the
function that inspects, written as the command line has it (``--leave-out``).
"""

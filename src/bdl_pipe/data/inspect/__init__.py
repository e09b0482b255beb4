"""Inspection of a user's table or images for problems that would spoil a fit, before anything is fitted.

``table.inspect_table`` and ``images.inspect_images`` read all rows and return a ``profile.Profile``; its ``source``
reads the same rows for a fit. Data that cannot be used raise a DataError with the cure: an argument of the inspecting
function, written as the command line's option (``--leave-out``).
"""

"""Tables of users: what a cell says, what kind a column has, and what about it looks wrong.

``read`` opens a file; ``cells`` reads a column once; ``columns`` describes it and turns it into numbers; ``kinds``
chooses the features; ``lint`` doubts them. ``read``, ``cells``, ``columns`` and what they import need NumPy and Arrow
alone, and an exported program takes them along.
"""

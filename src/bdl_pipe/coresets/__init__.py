"""Pseudo-coresets: a few synthetic or selected rows that replace a data set, and posteriors fitted to them.

``shared`` contains the parts that several methods use; each method has its own module or folder.
"""

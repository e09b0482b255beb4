"""Pseudo-coresets: a few synthetic or chosen rows in place of a data set, and what predicts from them.

``shared`` holds what several methods use; each method has a module or a folder of its own.
"""

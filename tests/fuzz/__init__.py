"""Seeded random damage to files and params: each damaged input is read consistently, or refused in one line.

``FUZZ_CASES=5000 FUZZ_SEED=7 python -m pytest tests/fuzz`` tries more cases than the tests; a failure names its case.
"""

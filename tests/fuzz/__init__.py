"""Seeded random damage to all that a user or a disk may hand us: it is accepted and consistent, or refused in a line.

``FUZZ_CASES=5000 FUZZ_SEED=7 python -m pytest tests/fuzz`` looks further than the tests do; a failure names its case.
"""

"""The threads of NumPy's and SciPy's linear algebra."""

import os


def limit() -> None:
    """Give linear algebra as many threads as a task has (BDL_THREADS), unless OMP_NUM_THREADS is set.

    Call this before NumPy is imported. As many stages run at once as keep all cores busy. With a thread for each core,
    they would wait for each other in every small product: on two busy cores the eigenvalues of a 128 × 128 matrix take
    0.2 to 0.4 seconds, and 4 milliseconds with one thread.
    """
    os.environ.setdefault("OMP_NUM_THREADS", os.environ.get("BDL_THREADS") or "1")

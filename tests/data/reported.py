"""Columns and rows that the tests of public reports share."""

import datetime as dt

from tests.data.test_cells import ROWS, X, Y

PLAIN = "x,y\n" + "".join(f"{x},{y}\n" for x, y in zip(X, Y, strict=True))
SQUARES = [round(float(x * x), 4) for x in X]
DAYS = [dt.date(2023, 1, 1) + dt.timedelta(days=7 * i % 400) for i in range(ROWS)]
EPOCH = [1_680_000_000 + 86_400 * (7 * i % 400) for i in range(ROWS)]

"""A table as a user might have it."""

import numpy as np
import pandas as pd


def houses(rows: int = 300) -> pd.DataFrame:
    """Return houses with a price: numbers, categories, dates, truth values, empty cells and a skewed target."""
    g = np.random.default_rng(0)
    made_of = g.choice(["wood", "stone", "brick"], rows)
    area = g.gamma(4, 30, rows)
    price = np.exp(0.01 * area + (made_of == "stone") + 0.8 * g.normal(size=rows))
    frame = pd.DataFrame({"area": area, "made_of": made_of, "rooms": g.integers(1, 7, rows), "price": price})
    frame["built"] = (pd.Timestamp("1950-01-01") + pd.to_timedelta(g.integers(0, 25_000, rows), unit="D")).strftime(
        "%Y-%m-%d"
    )
    frame.loc[::17, "rooms"] = np.nan
    frame["kind"] = np.where(area > 120, "large", "small")
    frame["garden"] = g.random(rows) < 0.4
    return frame

"""Costs of a fit as its ``.run.json`` tells them, by seed."""

import math
from collections.abc import Mapping
from typing import Any


def fit_seconds(record: Mapping[str, Any]) -> dict[int, float]:
    """Seconds by seed: a member's own and those of everything upstream that it was made from."""
    if "total_seconds" in record:
        return by_seed(record["total_seconds"])
    upstream = record.get("upstream_seconds", 0.0)
    total = math.fsum(upstream.values()) if isinstance(upstream, dict) else float(upstream or 0.0)
    return {seed: own + total for seed, own in by_seed(record.get("seconds")).items()}


def by_seed(value: Any) -> dict[int, float]:
    """A number, a list over members, or {"<split>-<member>": number} -> seed -> number."""
    if value is None:
        return {}
    if isinstance(value, int | float):
        return {0: float(value)}
    if isinstance(value, list):
        return {i: float(v) for i, v in enumerate(value)}
    pairs = {tuple(int(part) for part in key.split("-")): float(v) for key, v in value.items()}
    several, many = len({split for split, _ in pairs}) > 1, any(member for _, member in pairs)
    return {(s * 1000 + m if many else s) if several else m: v for (s, m), v in sorted(pairs.items())}

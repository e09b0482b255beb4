"""The run-time type checker of the tests: beartype, with an int where a float is meant (PEP 484)."""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

checked: Callable[[Any], Any] = beartype(conf=BeartypeConf(is_pep484_tower=True))

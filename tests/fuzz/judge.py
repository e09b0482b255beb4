"""The judgement of a case: it must give a whole answer, or one short line that names the file or the key."""

import os
import random
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from bdl_pipe.errors import UserError

SEED: Final = int(os.environ.get("FUZZ_SEED", "0"))
LONGEST: Final = 500  # characters of a refusal


@dataclass(frozen=True)
class Case:
    """One thing to try.

    Attributes:
        about: what was damaged and how, for a failure's message.
        work: reads the damaged input; raises AssertionError if the answer is not consistent.
        names: a refusal must hold one of these.
    """

    about: str
    work: Callable[[], None]
    names: Collection[str]


def cases(default: int) -> int:
    """How many cases of a kind to try: ``FUZZ_CASES``, or the ``default``."""
    return int(os.environ.get("FUZZ_CASES", default))


def judge(kind: str, count: int, make: Callable[[random.Random, int], Case]) -> None:
    """Try ``count`` cases, each made from its own random numbers; fail with a list of all wrong cases.

    Some cases must be accepted and some refused; otherwise the damage tests nothing.
    """
    wrong, seen = list[str](), Counter[str]()
    for number in range(count):
        case = make(random.Random(f"{SEED} {kind} {number}"), number)
        problem = _problem(case, seen)
        if problem:
            wrong.append(f"FUZZ_SEED={SEED} {kind} case {number}: {case.about}\n    {problem}")
    print(f"fuzz {kind}: {count} cases, {seen['accepted']} accepted, {seen['refused']} refused, {len(wrong)} wrong")
    assert not wrong, f"{len(wrong)} of {count} cases\n" + "\n".join(wrong[:30])
    assert seen["accepted"] and seen["refused"], seen


def _problem(case: Case, seen: Counter[str]) -> str:
    """Describe what is wrong with a case; empty if it is right."""
    try:
        case.work()
    except UserError as error:
        seen["refused"] += 1
        message = str(error)
        if "\n" in message or len(message) >= LONGEST or not message.isprintable():
            return f"refused, but not in one short line: {message[:600]!r} ({len(message)} characters)"
        if not any(name in message for name in case.names):
            return f"refused without naming one of {sorted(case.names)[:8]}: {message}"
        return ""
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-3:]
        places = " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" for frame in reversed(where))
        return f"{type(error).__name__}: {str(error)[:300]} ({places})"
    seen["accepted"] += 1
    return ""

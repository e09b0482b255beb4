"""The ``dvc repro`` that a stage's own process runs under; nothing heavy is imported, as every stage pays for it."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_PASSIVE: Final = ("-v", "--verbose", "-q", "--quiet")  # options of dvc repro that leave what it runs alone


@dataclass(frozen=True)
class Invocation:
    """A ``dvc repro`` that this process runs under.

    Attributes:
        pid, created: its process.
        targets: what it was asked for; empty: the whole graph; null: more than targets, which only DVC can tell.
        forced: it runs what is up to date, too.
    """

    pid: int
    created: float
    targets: tuple[str, ...] | None
    forced: bool

    @classmethod
    def above(cls) -> Self | None:
        """Return the nearest ``dvc repro`` above this process; None where there is none."""
        import psutil

        for process in psutil.Process().parents():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if any(Path(word).name == "dvc" for word in words[:3]) and "repro" in words:
                    return cls._of(process.pid, process.create_time(), words[words.index("repro") + 1 :])
        return None

    @classmethod
    def _of(cls, pid: int, created: float, words: list[str]) -> Self:
        given = [word for word in words if word not in _PASSIVE]
        plain = not any(word.startswith("-") for word in given)
        forced = "--force" in words or any(w.startswith("-") and not w.startswith("--") and "f" in w for w in words)
        return cls(pid, created, tuple(given) if plain else None, forced)

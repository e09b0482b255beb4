"""``python -m pipeline.installed 'NAME[EXTRA,...]'``: whether all that a package declares is here, as it asks for it.

``make install`` takes packages from a list without asking what they need, and asks here once whether the list is whole.
``pip check`` asks that of every package, also of those that declare what nobody imports.
"""

import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def main(text: str) -> int:
    """Return 1 if something is missing or of a wrong version, with one line for each on stderr."""
    problems = unmet(Requirement(text))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def unmet(requirement: Requirement) -> list[str]:
    """List what is missing or of a wrong version, of a requirement and of all that it leads to."""
    problems = []
    for needed, parent, package in reached(requirement):
        by = f", which {parent} needs," if parent else ""
        if package is None:
            problems.append(f"{needed.name}{by} is not installed")
        elif not needed.specifier.contains(package.version, prereleases=True):
            problems.append(f"{needed.name}{by} must be {needed.specifier}, got {package.version}")
    return problems


def reached(requirement: Requirement) -> Iterator[tuple[Requirement, str, metadata.Distribution | None]]:
    """Yield a requirement and all that it leads to here: each with the package that needs it, and the one installed."""
    todo, seen = [(requirement, "")], set[tuple[str, str]]()
    while todo:
        needed, parent = todo.pop()
        try:
            package = metadata.distribution(needed.name)
        except metadata.PackageNotFoundError:
            yield needed, parent, None
            continue
        yield needed, parent, package
        for extra in ("", *needed.extras):
            place = (canonicalize_name(needed.name), extra)
            if place not in seen:
                seen.add(place)
                below = [Requirement(line) for line in package.requires or ()]
                todo += [(r, needed.name) for r in below if r.marker is None or r.marker.evaluate({"extra": extra})]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

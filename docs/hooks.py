"""Bring into the site the files of the repository that its pages link to, such as stored results.

MkDocs knows the files below ``docs/`` alone, and leaves a link such as ``../results/claims.md`` as it is, which leads
nowhere in the site. Here each linked file outside of ``docs/`` becomes a file of the site at the same path, and links
are rewritten to it. Its own links are followed, too. MkDocs then checks every link and every anchor.
"""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from griffe import Extension

ROOT: Final = Path(__file__).parents[1]
LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)")
ROLE: Final = re.compile(r":(?:class|func|meth|mod|attr|data|exc):<code>~?\.*([^<]+)</code>")
ENTRY: Final = re.compile(r"^    (\w+(?:, \w+)+): (.*(?:\n {8}.*)*)", re.M)
CODE: Final = re.compile(r"(^```.*?^```)", re.M | re.S)


class OneName(Extension):  # type: ignore[misc]
    """Split a docstring's entry of several names, ``rows, cols: of U``, which griffe reads as one name and a type.

    An estimator's parameters, which its base documents, are shown with the estimator.
    """

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ENTRY.sub(_split, obj.docstring.value)

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        if "estimators" not in pkg.members:
            return
        base = pkg["estimators.base.BayesianEstimator"]
        args = re.search(r"^Args:\n(?:    .*\n?)+", base.docstring.value, re.M)
        assert args is not None
        for place in ("regressor.BayesianRegressor", "classifier.BayesianClassifier"):
            estimator = pkg[f"estimators.{place}"]
            estimator.members["__init__"] = base.members["__init__"]
            text = estimator.docstring.value
            estimator.docstring.value = text.replace("Attributes:\n", f"{args[0].rstrip()}\n\nAttributes:\n", 1)


def _split(entry: re.Match[str]) -> str:
    return "\n".join(f"    {name}: {entry[2]}" for name in entry[1].split(", "))


def on_files(files: Any, config: Any) -> Any:
    """Add the files that pages link to, and the files that those link to."""
    from mkdocs.structure.files import File

    todo = [f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md")]
    seen = set(todo)
    for page in ("CHANGELOG.md", "CONTRIBUTING.md"):  # the site's own pages have no link to them
        files.append(File.generated(config, page, abs_src_path=str(ROOT / page)))
        seen.add(page)
        todo.append(page)
    while todo:
        page = todo.pop()
        for target in links(page):
            if target in seen or not (ROOT / target).is_file():
                continue
            seen.add(target)
            if target.endswith(".md"):
                todo.append(target)
            if not target.startswith("docs/"):
                files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Rewrite links to repository files as links within the site."""
    source = page.file.src_uri if page.file.generated_by else f"docs/{page.file.src_uri}"
    here = posixpath.dirname(in_site(source))

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        return posixpath.relpath(in_site(target), here or ".") if (ROOT / target).is_file() else match[1]

    parts = CODE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


def on_page_content(html: str, **_: Any) -> str:
    """Show a docstring's ``:class:`Name``` as the name alone."""
    return ROLE.sub(r"<code>\1</code>", html)


def links(page: str) -> list[str]:
    """List the repository paths that a page links to; ``page`` is a repository path."""
    text = CODE.sub("", (ROOT / page).read_text())
    return [posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in LINK.findall(text)]


def in_site(path: str) -> str:
    """Return the site's path of a repository path: ``docs/`` is the root of the site."""
    return path.removeprefix("docs/")

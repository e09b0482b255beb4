"""``python -m pipeline upgrade [FILE…]``: give old keys and values of params files their present names.

Every other byte stays: comments, order and layout are those of the file. A file without an old name is left alone.
Whole params files, overlays and studies are read.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import yaml

from bdl_pipe.errors import DataError, brief
from bdl_pipe.files import read_text, write_bytes

from .core.old_keys import RUNS, present, present_value

Edit = tuple[int, int, str]  # from which to which character, and what stands there instead


def main(args: argparse.Namespace) -> int:
    """Rewrite the files that were named, or params.yaml, and say how many names changed in each.

    Raises:
        DataError: a file is missing or is not YAML; nothing has been rewritten then.
    """
    files = args.files or [Path("params.yaml")]
    rewritten = [(path, *upgraded(read_text(path), path)) for path in files]
    for path, text, count in rewritten:
        if count:
            write_bytes(path, text.encode())
        print(f"{path}: {count} old names rewritten" if count else f"{path}: has no old name")
    return 0


def upgraded(text: str, path: Path) -> tuple[str, int]:
    """Return a text with the present names of its keys and values, and how many were old.

    Raises:
        DataError: the text is not YAML.
    """
    edits = _edits(text, path)
    for start, stop, name in reversed(edits):
        text = text[:start] + name + text[stop:]
    return text, len(edits)


def _edits(text: str, path: Path) -> list[Edit]:
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise DataError(f"{path}: is not YAML: {brief(getattr(error, 'problem', None) or error)}") from None
    return sorted(set(_of_file(root))) if root is not None else []


def _of_file(root: yaml.Node) -> Iterator[Edit]:
    """Yield the edits of a params file, an overlay or a study.

    A study has an overlay as ``overlay``; the edits of its axes are among them.
    """
    method = next((value.value for key, value in _items(root) if key.value == "method"), "")
    for key, value in _items(root):
        if key.value == "methods":
            for name, section in _items(value):
                yield from _of_section(section, name.value, ())
        elif key.value == "datasets":
            for _, dataset in _items(value):
                yield from _of_dataset(dataset)
        elif key.value in RUNS:
            for _, run in _items(value):
                yield from _of_run(run)
        elif key.value == "overlay":
            yield from _of_file(value)
        elif method and key.value in ("grid", "names", "figure"):
            yield from (edit for scalar in _scalars(value) for edit in _of_axis(scalar, method))


def _of_dataset(dataset: yaml.Node) -> Iterator[Edit]:
    for key, value in _items(dataset):
        if isinstance(value, yaml.ScalarNode) and (name := present_value(key.value, value.value)) is not None:
            yield _replaced(value, name)


def _of_run(run: yaml.Node) -> Iterator[Edit]:
    method = next((value.value for key, value in _items(run) if key.value == "method"), "")
    for key, value in _items(run):
        if key.value == "members":
            yield _replaced(key, "seeds")
        elif key.value == "override":
            yield from _of_section(value, method, ())


def _of_section(section: yaml.Node, method: str, above: tuple[str, ...]) -> Iterator[Edit]:
    for key, value in _items(section):
        if (name := present((*above, key.value), method)) is not None:
            yield _replaced(key, name)
        yield from _of_section(value, method, (*above, key.value))


def _of_axis(scalar: yaml.ScalarNode, method: str) -> Iterator[Edit]:
    """Yield the edit of an axis: ``learn.optimiser.rate``, or with several last keys ``weights.rows+cols``."""
    *section, last = scalar.value.split(".")
    sections = [present(section[: i + 1], method) or key for i, key in enumerate(section)]
    keys = [present((*section, key), method) or key for key in last.split("+")]
    name = ".".join([*sections, "+".join(keys)])
    if name != scalar.value:
        yield _replaced(scalar, name)


def _scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item)
    else:
        for key, value in _items(node):
            yield key
            yield from _scalars(value)


def _items(node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """Return the keys and values of a mapping; nothing of any other node."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return ((key, value) for key, value in pairs if isinstance(key, yaml.ScalarNode))


def _replaced(scalar: yaml.ScalarNode, name: str) -> Edit:
    quote = scalar.style or ""
    return scalar.start_mark.index, scalar.end_mark.index, f"{quote}{name}{quote}"

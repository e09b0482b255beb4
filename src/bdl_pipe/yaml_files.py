"""YAML files, read strictly as YAML 1.2, like DVC and ruamel.yaml, and written so that YAML 1.1 reads the same.

``no``, ``on`` and ``12:30`` are texts, 1e-3 is a number, 010 is ten. A repeated key is an error, and integers must be
below 2^63.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.composer import Composer

from .errors import DataError, brief
from .files import read_text


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Read a file whose top is a mapping, such as a config for :func:`bdl_pipe.config.read`.

    Raises:
        DataError: the file is missing, cannot be read, is not YAML, or is not a mapping.
    """
    if not os.path.lexists(path):
        raise DataError(f"{path}: there is no such file in {Path.cwd()}")
    text = read_text(path)
    try:
        loaded = yaml.load(text, _Loader)
    except RecursionError:
        raise DataError(f"{path}: is nested too deep") from None
    except Exception as error:  # The constructor of an explicit tag may raise anything.
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        last = text.count("\n")  # libyaml counts the end of a file as a line of its own
        place = f"{path}:{min(mark.line, last) + 1}" if mark else str(path)
        raise DataError(f"{place}: is not YAML: {brief(problem)}") from None
    if not isinstance(loaded, dict):
        raise DataError(f"{path}: must be sections (key: value)")
    return loaded


def write_yaml(value: Mapping[str, object]) -> str:
    """Write a mapping in its order; a text that YAML 1.1 or 1.2 would read as another type is quoted."""
    return yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False)


# libyaml scans seven times as fast as PyYAML; some builds lack it. Nodes are composed in Python: a file that is
# nested too deep is then an error, where the composer in C overflows the stack and ends the process.
_BASES: Final[tuple[Any, ...]] = (Composer, yaml.CSafeLoader) if hasattr(yaml, "CSafeLoader") else (yaml.SafeLoader,)


class _Loader(*_BASES):  # type: ignore[misc]
    def __init__(self, stream: str) -> None:
        _BASES[-1].__init__(self, stream)
        Composer.__init__(self)


class _Dumper(yaml.SafeDumper):
    pass


_SCALARS: Final = {  # YAML 1.2, section 10.3.2, plus ruamel.yaml's binary numbers and underscores
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "float": (
        r"[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.[0-9_]+([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "int": (r"[-+]?(0b[01_]+|0o?[0-7_]+|[0-9_]+|0x[0-9a-fA-F_]+)", "-+0123456789"),
}
_NEW: Final = {f"tag:yaml.org,2002:{name}" for name in _SCALARS}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag not in _NEW]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, (_form, _starts) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_form})$"), list(_starts))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[object, object]:
    seen = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key must be a text or a number", problem_mark=key_node.start_mark)
        key = loader.construct_object(key_node)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {key} occurs twice", problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    value = int(text, 0 if re.match("[-+]?0[box]", text) else 10)
    if abs(value) >= 2**63:
        raise yaml.MarkedYAMLError(problem="a whole number must be below 2^63", problem_mark=node.start_mark)
    return value


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)

"""YAML files, read strictly.

A key that stands twice is an error, 1e-3 is a number as in YAML 1.2, and a whole number is below 2^63.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .errors import DataError, brief
from .files import read_text


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Read a file whose top is a mapping, such as a config for :func:`bdl_pipe.config.read`.

    Raises:
        DataError: the file is missing, cannot be read, is not YAML, or is no mapping.
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
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise DataError(f"{place}: is not YAML: {brief(problem)}") from None
    if not isinstance(loaded, dict):
        raise DataError(f"{path}: must be sections (key: value)")
    return loaded


class _Loader(yaml.SafeLoader):
    pass


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key must be a text or a number", problem_mark=key_node.start_mark)
        key = loader.construct_object(key_node)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {key} stands twice", problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    value = loader.construct_yaml_int(node)
    if abs(value) >= 2**63:
        raise yaml.MarkedYAMLError(problem="a whole number must be below 2^63", problem_mark=node.start_mark)
    return value


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+0123456789.")
)

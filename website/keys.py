"""The keys of ``params.yaml``, read from the dataclasses that check them: name, type, rule, default and meaning."""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from bdl_pipe import config
from bdl_pipe.networks import NetworkConfig
from bdl_pipe.sgmcmc.kernels import KernelConfig

WORDS: Final = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`", type(None): "`null`"}
ROLE: Final = re.compile(r":\w+:`~?\.*([^`]+)`")
KEYS_OF_MANY: Final = {  # a key -> its meaning if a docstring lacks it
    "name": "which variant this section is.",
    "network": "the architecture.",
    "training": "epochs, batches and the optimiser.",
    "layer": "the last layer.",
    "features": "variational features below the layer.",
    "batch": "rows of a step.",
    "optimiser": "the optimiser and its learning rate.",
    "early_stopping": "how the number of epochs is chosen on validation rows; null: it is fixed.",
    "augmentation": "random changes of the inputs; null: none.",
    "ipc": "coreset rows per class.",
    "student": "how a trunk is trained on the coreset.",
    "max_draws": "most draws of all chains, evenly spaced; null: all.",
    "keep_start": "whether the weights before the first step are a snapshot, too.",
    "kl_weight": "factor of the KL; 1 is the bound.",
    "prior_variance": "s of the prior N(0, sI).",
    "wishart_dof": "ν of the noise covariance's inverse-Wishart prior.",
    "wishart_scale": "m of the noise covariance's inverse-Wishart prior.",
    "dirichlet": "prior count of each class.",
}
KEYS_OF_ONE: Final = {
    "ConstantStep.value": "the step size of every step.",
    "PolynomialDecay.a": "a of the step size a (b + t)^(−c) of step t.",
    "PolynomialDecay.b": "b of that step size.",
    "PolynomialDecay.c": "c of that step size, in (1/2, 1] for chains that converge.",
    "ScaledSteps.rate": "the learning rate that gradient descent on the rows' mean loss would have.",
    "Thinning.steps": "steps of a chain.",
    "Thinning.burn_in": "first steps, of which nothing is kept.",
    "Thinning.every": "steps from one kept draw to the next.",
    "NoisyConfig.noise": "standard deviation of the noise that is added to training inputs, in standardised units.",
    "UniformConfig.margin": "share of the box's width that is added on each side.",
    "AnnealingConfig.start": "epoch up to which the KL has no weight.",
    "AnnealingConfig.end": "epoch from which the KL has its whole weight.",
}


@dataclass(frozen=True)
class Key:
    """A key of a section.

    Attributes:
        kind: its type, in words.
        rule: its range in the words of the error; empty if the type is the only rule.
        default: its value if the section lacks it; empty if the section must have it.
    """

    name: str
    kind: str
    rule: str
    default: str
    meaning: str


def keys(section: type) -> list[Key]:
    """List the keys of a config, in its own order."""
    hints, meant, ruled = get_type_hints(section), meanings(section), rules(section)
    rows = []
    for field in dataclasses.fields(section):
        kind = "section" if "read" in field.metadata else kind_of(hints[field.name])
        meaning = meant.get(field.name, "")
        if not meaning or meaning.startswith("see `"):
            meaning = KEYS_OF_ONE.get(f"{section.__name__}.{field.name}") or KEYS_OF_MANY.get(field.name, meaning)
        rows.append(Key(field.name, kind, ruled.get(field.name, ""), default_of(field), meaning))
    return rows


def default_of(field: "dataclasses.Field[Any]") -> str:
    """Word the default of a field; empty if it has none."""
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return ""
    return f"`{in_yaml(config._plain(value))}`"


def in_yaml(value: object) -> str:
    """Write a value as a line of ``params.yaml``."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {in_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_yaml, value)) + "]"
    return str(value) if value != "" else '""'


def kind_of(hint: Any) -> str:
    """Word a type; a section links to its own table."""
    origin = get_origin(hint)
    if origin is Literal:
        return " \\| ".join(f"`{in_yaml(value)}`" for value in get_args(hint))
    if hint in config._kinds or hint is NetworkConfig:
        return "[kernel](params-keys.md#kernel)" if hint is KernelConfig else "[network](params-keys.md#network)"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(kind_of(option) for option in get_args(hint)))
    if origin is tuple:
        return f"list of {kind_of(get_args(hint)[0])}"
    if origin in (dict, Mapping):
        return f"name: {kind_of(get_args(hint)[1])}"
    if dataclasses.is_dataclass(hint):
        variant = get_args(get_type_hints(hint).get("name"))
        word = f"`{variant[0]}`" if variant else "section"
        return f"[{word}](params-keys.md#{anchor(hint)})"  # type: ignore[arg-type]
    return WORDS.get(hint, "any value")


def anchor(section: type) -> str:
    """Return the anchor of a section's table, which two sections of one name in two families do not share."""
    return f"{section.__module__.split('.')[1]}-{section.__name__.lower()}"


def meanings(section: type) -> dict[str, str]:
    """Return the text on each key from the docstrings of a config and of its bases."""
    texts: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        if not dataclasses.is_dataclass(cls) or not cls.__doc__:
            continue
        _, _, attributes = inspect.cleandoc(cls.__doc__).partition("Attributes:\n")
        attributes = re.split(r"^\S", attributes, maxsplit=1, flags=re.M)[0]
        for entry in re.split(r"^    (?=\S)", attributes, flags=re.M)[1:]:
            names, _, text = entry.partition(":")
            for name in names.split(","):
                texts[name.strip()] = plain(text)
    return texts


def plain(text: str) -> str:
    """Write a docstring's text as a cell of Markdown."""
    one = ROLE.sub(r"`\1`", " ".join(text.split())).replace("``", "`")
    return re.sub(r"(?<!\\)\|", "\\|", one)


OR_NULL: Final = "must be > 0 or null"


def rules(section: type) -> dict[str, str]:
    """Return the rules that ``__post_init__`` checks with ``require`` and that are plain texts, by key."""
    texts: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        check = cls.__dict__.get("__post_init__")
        if check is None or "<string>" in check.__code__.co_filename:
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(check)))
        for names, rule in _requires(tree, {}):
            for name in names:
                if isinstance(rule, ast.Constant) and name not in texts:
                    texts[name] = str(rule.value)
    return texts


def _requires(tree: ast.AST, loops: Mapping[str, list[str]]) -> Iterator[tuple[list[str], ast.expr | None]]:
    """Yield the keys and the rule of each call of ``require`` and ``require_positive``.

    ``loops``: names of loops -> their values.
    """
    for node in ast.iter_child_nodes(tree):
        inner = dict(loops)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple):
            inner[node.target.id] = [str(item.value) for item in node.iter.elts if isinstance(item, ast.Constant)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require":
            key, rule = (*node.args[1:3], None, None)[:2]
            if isinstance(key, ast.Constant):
                yield [str(key.value)], rule
            elif isinstance(key, ast.Name):
                yield inner.get(key.id, []), rule
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require_positive":
            yield [ast.literal_eval(key) for key in node.args[1:]], ast.Constant("must be > 0")
            yield [key for word in node.keywords for key in ast.literal_eval(word.value)], ast.Constant(OR_NULL)
        yield from _requires(node, inner)


def parts(section: type) -> list[type]:
    """List the sections within a config, and those within these."""
    sections: dict[type, None] = {}
    for hint in get_type_hints(section).values():
        for part in _dataclasses(hint):
            sections |= dict.fromkeys([part, *parts(part)])
    return list(sections)


def _dataclasses(hint: Any) -> list[type]:
    if hint in config._kinds or hint is NetworkConfig:
        return []
    if dataclasses.is_dataclass(hint):
        return [hint]  # type: ignore[list-item]
    return [part for option in get_args(hint) if not isinstance(option, str) for part in _dataclasses(option)]

"""The other sets that a data set names: to tell apart from its own (``ood``), or to be scored on (``transfer``)."""

from ..errors import ConfigError, require
from .config import NAMED, DatasetConfig, Noise, Source, is_table


def ood_source(name: str, datasets: dict[str, DatasetConfig], path: str) -> Source | Noise:
    """The source behind an entry of ``ood``: a row of ``datasets``, a source without options, or noise.

    Raises:
        ConfigError: it is none of these, or not a set of images.
    """
    if name == Noise.name and name not in datasets:
        return Noise()
    return _images(name, datasets, {*datasets, *NAMED, Noise.name}, path)


def transfer_source(name: str, fitted: str, datasets: dict[str, DatasetConfig], path: str) -> Source:
    """The source behind an entry of ``transfer`` of the set ``fitted``: as in ``ood``, but for noise.

    Raises:
        ConfigError: it is none of these, not a set of images, or the fitted set itself.
    """
    source = _images(name, datasets, {*datasets, *NAMED}, path)
    require(source != datasets[fitted].source, path, "must name another set than the fitted one", name)
    return source


def _images(name: str, datasets: dict[str, DatasetConfig], known: set[str], path: str) -> Source:
    source = datasets[name].source if name in datasets else NAMED.get(name)
    if source is None:
        raise ConfigError(path, f"must name a data set (known: {', '.join(sorted(known))})", name)
    if is_table(source):
        raise ConfigError(path, "must name a set of images", name)
    return source

"""A data set of the catalogue by its name, for notebooks: ``bdl_pipe.load_dataset("fashion_mnist")``."""

from . import catalog, sources
from .raw import Raw


def load_dataset(name: str) -> Raw:
    """Read a whole data set in original units: ``.train`` and, where it has its own test rows, ``.test``.

    Args:
        name: an entry of the catalogue (docs/your-data.md), or of a plugin.

    Raises:
        ConfigError: there is no such data set.
        UserError: it is not on this machine and cannot be fetched; the message names the ways out.
    """
    return sources.load(catalog.read({"name": name}, "name"))

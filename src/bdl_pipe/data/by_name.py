"""Load a data set of the catalogue by name, for notebooks: ``bdl_pipe.load_dataset("fashion_mnist")``."""

from . import catalog, sources
from .raw import Raw


def load_dataset(name: str) -> Raw:
    """Read a whole data set in original units: ``.train`` and, if it has its own test rows, ``.test``.

    Args:
        name: an entry of the catalogue (docs/your-data.md), or of a plugin.

    Raises:
        ConfigError: there is no such data set.
        UserError: the data set is not on this machine and cannot be downloaded; the message lists solutions.
    """
    return sources.load(catalog.read({"name": name}, "name"))

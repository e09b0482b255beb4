"""The sources of raw rows: original files, packages' copies, downloads, and users' own files."""

from ..raw import Raw, Source, checked

__all__ = ["load"]


def load(source: Source) -> Raw:
    """Read the whole data set in original units, and check it.

    Raises:
        UserError: the data set is not on this machine and cannot be downloaded; the message lists solutions.
        DataError: the rows are wrong; the message names the file, the rule and the value.
    """
    return checked(source.read())

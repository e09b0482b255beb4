"""Where raw rows come from: original files, packages' copies, downloads, and users' own files."""

from ..raw import Raw, Source, checked

__all__ = ["load"]


def load(source: Source) -> Raw:
    """Read the whole data set in original units, and check it.

    Raises:
        UserError: it is not on this machine and cannot be fetched; the message names the ways out.
        DataError: the file, rule and value of whatever is wrong with the rows.
    """
    return checked(source.read())

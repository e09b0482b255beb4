"""Output to terminals whose encoding lacks some characters."""

import contextlib
import io
import sys


def replace_what_it_lacks() -> None:
    """Print a question mark for each character that the terminal's encoding lacks, in place of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # where a parent has put a pipe in a file's place
                stream.reconfigure(errors="replace")

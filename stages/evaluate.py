"""evaluate: scores of a run on test rows, corrupted rows, other data: ``python -m stages.evaluate KEY``."""

import sys

from pipeline.run import shell

if __name__ == "__main__":
    sys.exit(shell.main("evaluate", sys.argv[1:]))

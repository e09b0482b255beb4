"""teacher: chains of posterior draws, one for each member: ``python -m stages.teacher KEY``."""

import sys

from pipeline.run import shell

if __name__ == "__main__":
    sys.exit(shell.main("teacher", sys.argv[1:]))

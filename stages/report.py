"""report: tables and pictures from the stored scores of all runs: ``python -m stages.report``."""

import sys

from pipeline.run import shell

if __name__ == "__main__":
    sys.exit(shell.main("report", sys.argv[1:]))

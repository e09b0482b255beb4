"""report: tables and pictures from the stored scores of all runs: ``python -m stages.report``."""

import sys

from pipeline.run import client

if __name__ == "__main__":
    sys.exit(client.main("report", sys.argv[1:]))

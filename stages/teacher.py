"""teacher: chains of posterior draws, one for each member: ``python -m stages.teacher KEY``."""

import sys

from pipeline.run import client

if __name__ == "__main__":
    sys.exit(client.main("teacher", sys.argv[1:]))

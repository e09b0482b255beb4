"""coreset: a few synthetic or chosen rows in place of a data set: ``python -m stages.coreset KEY``."""

import sys

from pipeline.run import client

if __name__ == "__main__":
    sys.exit(client.main("coreset", sys.argv[1:]))

"""coreset: a few synthetic or chosen rows in place of a data set: ``python -m stages.coreset KEY``."""

import sys

from pipeline.run import shell

if __name__ == "__main__":
    sys.exit(shell.main("coreset", sys.argv[1:]))

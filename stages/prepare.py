"""prepare: fetch, verify, split, normalise, whiten, corrupt: ``python -m stages.prepare DATASET``."""

import sys

from pipeline.run import shell

if __name__ == "__main__":
    sys.exit(shell.main("prepare", sys.argv[1:]))

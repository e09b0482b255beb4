"""sources: hashes of the code and the users' files that the other stages depend on: ``python -m stages.sources``."""

import sys

from pipeline.run import shell

if __name__ == "__main__":
    sys.exit(shell.main("sources", sys.argv[1:]))

"""inputs: several artifacts that are read together, under one name: ``python -m stages.inputs KEY``."""

import sys

from pipeline.run import shell

if __name__ == "__main__":
    sys.exit(shell.main("inputs", sys.argv[1:]))

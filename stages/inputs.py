"""inputs: several artifacts that are read together, under one name: ``python -m stages.inputs KEY``."""

import sys

from pipeline.run import client

if __name__ == "__main__":
    sys.exit(client.main("inputs", sys.argv[1:]))

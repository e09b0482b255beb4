"""trajectory: SGD trajectories of a network, one for each member: ``python -m stages.trajectory KEY``."""

import sys

from pipeline.run import shell

if __name__ == "__main__":
    sys.exit(shell.main("trajectory", sys.argv[1:]))

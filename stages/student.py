"""student: the posteriors that will predict: ``python -m stages.student KEY``."""

import sys

from pipeline.run import shell

if __name__ == "__main__":
    sys.exit(shell.main("student", sys.argv[1:]))

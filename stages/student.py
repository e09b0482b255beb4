"""student: the posteriors that will predict: ``python -m stages.student KEY``."""

import sys

from pipeline.run import client

if __name__ == "__main__":
    sys.exit(client.main("student", sys.argv[1:]))

"""Import the stages' modules once, in the process that stages are forked from (see ``children``).

If a module cannot be imported, the stage that needs it reports the error.
"""

import contextlib
import gc
import importlib
import signal

from bdl_pipe.registry import METHODS

from ..core import signals
from ..plan.code import BODIES
from ..work.cluster import prepare_environment

_LATER = (  # imported on use
    *("torch._dynamo", "scipy.optimize.elementwise", "scipy.stats", "bdl_pipe.summary"),
    *("pyarrow.pandas_compat", "pyarrow.dataset"),
)

signals.end_with_parent()
signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the command stops its stages
prepare_environment()
gc.disable()
for _module in (*BODIES.values(), "pipeline.run.body", *_LATER):
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)
for _name in METHODS:
    with contextlib.suppress(ImportError):
        METHODS[_name]
gc.freeze()  # so that garbage collection in a fork does not copy the pages of imported modules
gc.enable()

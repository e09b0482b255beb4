"""Import what stages need, once, in the process that stages are forked from (see ``children``).

A module that cannot be imported is left to the stage that needs it, which says why.
"""

import contextlib
import gc
import importlib
import signal

from bdl_pipe.registry import METHODS

from ..core import signals
from ..plan.code import BODIES
from ..work.cluster import prepare_environment

_LATER = ("torch._dynamo", "scipy.optimize.elementwise", "bdl_pipe.summary", "pyarrow.pandas_compat")  # imported on use

signals.end_with_parent()
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal goes to the command, which stops its stages.
prepare_environment()
gc.disable()
for _module in (*BODIES.values(), "pipeline.run.body", *_LATER):
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)
for _name in METHODS:
    with contextlib.suppress(ImportError):
        METHODS[_name]
gc.freeze()  # A fork that looked for garbage among imported modules would copy every page of them.
gc.enable()

"""What is sent to a worker, together with the plugins that it needs there."""

from typing import Any

from bdl_pipe import plugins


def sealed(value: Any) -> Any:
    """Wrap ``value`` for a worker that may lack this process's plugins: reading it there imports them first."""
    return _Sealed(value) if plugins.loaded() else value


class _Sealed:
    """A value whose pickle imports the plugins; the process that reads it gets the value itself."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        from ray import cloudpickle

        return plugins.opened, (plugins.loaded(), cloudpickle.dumps(self._value))

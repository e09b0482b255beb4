"""Where a search keeps its trials and their checkpoints: storage that Ray Tune writes from every node.

Inside one machine a folder of the project. Where ``BDL_SEARCHES`` names storage that all nodes share (S3, or a folder
of a network's disk), that, and another machine can go on with the search. On a cluster without any the folder is the
driver's, which the nodes reach through Ray.
"""

import contextlib
import hashlib
import io
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs as arrow

from ..core.settings import Settings
from ..core.storage import Place, opened, require
from ..work.hub import on_this_node

_CALLS: Final = ("info", "ls", "makedirs", "rm", "mv", "cp_file", "cat_file", "pipe_file")


def shared(settings: Settings, name: str, identity: str) -> Place | None:
    """Return the place of a search in the storage that all machines share; None without one.

    Raises:
        UserError: it cannot be written.
    """
    if not settings.searches:
        return None
    require("BDL_SEARCHES", settings.searches)
    return opened("BDL_SEARCHES", settings.searches, f"{name}-{identity[:16]}")


@contextlib.contextmanager
def of_driver(folder: Path) -> Iterator[Place]:
    """Make a folder of this machine one that every node of its cluster reaches, within the block.

    Its name follows from the folder: Tune keeps the name for trials that a resumed search has yet to begin.
    """
    import ray

    root = str(folder.absolute())
    name = f"bdl-drive-{hashlib.sha256(f'{socket.gethostname()}:{root}'.encode()).hexdigest()[:12]}"
    drive = ray.remote(Drive).options(name=name, **on_this_node()).remote(root)
    try:
        yield Place(arrow.PyFileSystem(arrow.FSSpecHandler(Driven(name))), root)
    finally:
        ray.kill(drive)


class Drive:
    """An actor that reads and writes below one folder of its node."""

    def __init__(self, root: str) -> None:
        self._root, self._files = Path(root), LocalFileSystem(auto_mkdir=True)

    def call(self, what: str, *arguments: Any, **options: Any) -> Any:
        """Do one of ``_CALLS`` of fsspec's local file system.

        Raises:
            PermissionError: of a path outside the folder.
        """
        paths = arguments[:2] if what in ("mv", "cp_file") else arguments[:1]
        for path in paths:
            if what not in _CALLS or not Path(path).resolve().is_relative_to(self._root.resolve()):
                raise PermissionError(f"{what} {path}: only below {self._root}")
        return getattr(self._files, what)(*arguments, **options)


class Driven(fsspec.AbstractFileSystem):
    """The file system of a :class:`Drive`; whole files are sent."""

    protocol = "bdl-drive"
    cachable = False

    def __init__(self, name: str, **options: Any) -> None:
        """Take the name of the actor, which is looked up where the file system is used."""
        super().__init__(name, **options)
        self._name = name

    def _call(self, what: str, *arguments: Any, **options: Any) -> Any:
        import ray

        try:
            return ray.get(ray.get_actor(self._name).call.remote(what, *arguments, **options))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def info(self, path: str, **options: Any) -> Any:
        return self._call("info", path)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return self._call("ls", path, detail=detail)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        self.makedirs(path, exist_ok=True)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._call("makedirs", path, exist_ok=exist_ok)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self._call("rm", path, recursive=recursive)

    def rm_file(self, path: str) -> None:
        self._call("rm", path)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        self._call("mv", path1, path2)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        self._call("cp_file", path1, path2)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> io.BytesIO:
        if mode == "rb":
            return io.BytesIO(self._call("cat_file", path))
        return _Sent(lambda blob: self._call("pipe_file", path, blob))


class _Sent(io.BytesIO):
    """A file that is sent when it is closed."""

    def __init__(self, send: Any) -> None:
        super().__init__()
        self._send = send

    def close(self) -> None:
        if not self.closed:
            self._send(self.getvalue())
        super().close()

"""The checkpoints of one stage; with ``BDL_CHECKPOINTS`` unfinished work is in storage that machines share."""

from pathlib import Path
from typing import Final

from bdl_pipe.checkpoint_files import CheckpointFolder

from ..core.storage import Folder

_VARIABLE: Final = "BDL_CHECKPOINTS"


class Store(CheckpointFolder):
    """The checkpoints of one stage, in ``folder/identity``, so that a killed stage repeats no finished task.

    Attributes:
        shared: the folder of unfinished work in shared storage, which workers write; None if it is in ``folder``.
    """

    shared: Folder | None = None

    def sharing(self, address: str) -> "Store":
        """Return this store with unfinished work in the storage at ``address``, or unchanged if ``address`` is empty.

        Raises:
            UserError: the storage cannot be written.
        """
        if not address:
            return self
        store = Store(self._folder, self._place.name)
        store.shared = Folder(_VARIABLE, address, "-".join(self._place.parts[-3:])).make()
        return store

    def save(self, name: str, blob: bytes) -> None:
        if self.shared:
            self.shared.save(f"{name}.part", blob)
        else:
            super().save(name, blob)

    def load(self, name: str) -> bytes | None:
        blob = self.shared.load(f"{name}.part") if self.shared else None
        return super().load(name) if blob is None else blob

    def finish(self, name: str, blob: bytes) -> None:
        super().finish(name, blob)
        if self.shared:
            self.shared.remove(f"{name}.part")

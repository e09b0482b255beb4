"""Corrupted test images: computed here, or a published -C release.

A release is a folder ``$BDL_DATA_DIR/<set>_corrupted/`` of one ``.npy`` per corruption, uint8
[5·n, height, width, channel]: the same n test images at severity 1, then 2, … (Hendrycks and
Dietterich, 2019). The files may be in a tar archive in this folder, which is read without unpacking it.
"""

import io
import tarfile
from pathlib import Path
from typing import Final

import numpy as np

from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.sources.archive import FOLDER_VARIABLE, manual_folder
from bdl_pipe.errors import DataError, UserError
from bdl_pipe.seeds import Seed

from .folders import Job

SEVERITIES: Final = (1, 2, 3, 4, 5)


def corruption_jobs(config: DatasetConfig) -> list[Job]:
    """List every corruption and severity to make, as independent jobs; empty if ``corrupted_images`` is 0."""
    from bdl_pipe.data.corrupt import NAMES  # it imports scipy, which tables do not need

    return [Job(name, s) for name in NAMES for s in SEVERITIES] if config.corrupted_images else []


def corrupt_one(job: Job, *, config: DatasetConfig, images: np.ndarray, rng: Seed) -> np.ndarray:
    """Apply one corruption to ``images``, uint8 [n, channel, height, width].

    ``rng`` is the data set's seed address. The result depends on the job and the image, and not on the order or machine
    of the jobs.
    """
    if config.corruptions == "published":
        return published(config.source.name, job, len(images))
    from bdl_pipe.data.corrupt import corrupt

    return corrupt(images, job.name, job.severity, rng.fold("corrupted"))


def published(name: str, job: Job, count: int) -> np.ndarray:
    """Read the first ``count`` images of a release at one severity.

    Raises:
        UserError: the release is not on this machine.
        DataError: its array is unreadable or of the wrong shape.
    """
    folder = manual_folder(f"{name}_corrupted")
    if folder is None:
        place = f"${FOLDER_VARIABLE}/{name}_corrupted/"
        raise UserError(f"{place}: is missing; put the .npy files of the -C release there, or set corruptions: made")
    path, array = folder / f"{job.name}.npy", None
    try:
        if path.is_file():
            array, origin = np.load(path, mmap_mode="r", allow_pickle=False), path
        for archive in sorted(folder.glob("*.tar")) if array is None else ():
            with tarfile.open(archive) as tar:
                member = next((m for m in tar if m.isfile() and Path(m.name).name == path.name), None)
                stream = tar.extractfile(member) if member else None
                if stream is not None:
                    array, origin = np.load(io.BytesIO(stream.read()), allow_pickle=False), archive
                    break
    except (OSError, ValueError, EOFError, tarfile.TarError) as error:
        raise DataError(f"{path}: is not a readable .npy of plain numbers ({error})") from None
    if array is None:
        raise DataError(f"{path}: is missing")
    if array.ndim != 4 or array.dtype != np.uint8 or len(array) % len(SEVERITIES):
        rule = "must be uint8 [5·n, height, width, channel]"
        raise DataError(f"{origin}: {rule}, got {array.dtype} {list(array.shape)}")
    rows = len(array) // len(SEVERITIES)
    if count > rows:
        raise DataError(f"{origin}: must have {count} images per severity (corrupted_images), got {rows}")
    start = (job.severity - 1) * rows
    return np.ascontiguousarray(array[start : start + count].transpose(0, 3, 1, 2))

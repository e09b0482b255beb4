"""One epoch over images that do not fit into Ray's object store: our memory-mapped file beside Ray Data.

    python -m benchmarks.ray_data                     # 40,000 images of 3 x 64 x 64; some minutes on two cores
    python -m benchmarks.ray_data --images 10000 --rounds 1

The images are random uint8 numbers, written once as our Arrow file and once as Parquet files of 1,000 images. Each form
yields every image once, as float32 batches of 256 in [0, 1]:

- ``mapped``: what a fit does, a new permutation of all rows (``bdl_pipe.data.fitdata.StreamedRows``), in one process;
- ``buffer``: Ray Data, files in random order and a shuffle within a buffer of 4,096 rows, no permutation of all rows;
- ``all``: Ray Data's ``random_shuffle``, a permutation of all rows.

Forms take turns. A line has the median and the least seconds of an epoch, of which the first one of each form is left
out; how much more memory all processes have at most than before the epoch, in GB, without pages of files (anonymous and
shared memory, each .1 s; the store is shared memory); and whether each image came once. The store has 200 MB.

Measured on two idle cores of an AMD EPYC, Ray 2.60.0, 20,000 images, 2 rounds, the file in the page cache: ``mapped``
.23 s and .09 GB, ``buffer`` 11.4 s and 3.85 GB, ``all`` 9.8 s and .61 GB.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from torch import Tensor

from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import StreamedRows, epoch_order
from bdl_pipe.data.transform import Transform
from bdl_pipe.seeds import Seed
from pipeline.prepared import arrow_rows

SHAPE: Final = (3, 64, 64)
BATCH, FILE, BUFFER, STORE = 256, 1000, 4096, 200_000_000


def main() -> None:
    """Print one line for each form."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), asked.images)
        ray.init(num_cpus=2, object_store_memory=STORE, include_dashboard=False, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        forms: dict[str, Callable[[int], Iterator[Tensor]]] = {
            "mapped": lambda epoch: mapped(Path(folder), epoch),
            "buffer": lambda epoch: by_ray(Path(folder), epoch, everything=False),
            "all": lambda epoch: by_ray(Path(folder), epoch, everything=True),
        }
        rows: dict[str, list[tuple[float, float, bool]]] = {form: [] for form in forms}
        for epoch in range(asked.rounds + 1):
            for form, batches in forms.items():
                rows[form].append(epoch_of(batches(epoch), asked.images))
        for form, measured in rows.items():
            seconds = [row[0] for row in measured[1:]]
            line: dict[str, Any] = {"form": form, "images": asked.images}
            line["seconds"] = [round(f(seconds), 2) for f in (statistics.median, min)]
            line |= {"GB": round(max(row[1] for row in measured), 2), "once": all(row[2] for row in measured)}
            print(json.dumps(line), flush=True)
        ray.shutdown()


def write(folder: Path, images: int) -> None:
    """Write the images in both forms; the first four bytes of an image are its number."""
    made = np.random.default_rng(0).integers(0, 256, (images, *SHAPE), dtype=np.uint8)
    made.reshape(images, -1)[:, :4] = np.arange(images, dtype="<u4").view(np.uint8).reshape(-1, 4)
    labels = np.zeros(images, np.int64)
    arrow_rows.write(folder / "rows.arrow", Examples(made, labels))
    (folder / "parquet").mkdir()
    for start in range(0, images, FILE):
        some = pa.FixedShapeTensorArray.from_numpy_ndarray(made[start : start + FILE])
        pq.write_table(pa.table({"input": some}), folder / f"parquet/{start:08}.parquet", compression="none")


def mapped(folder: Path, epoch: int) -> Iterator[Tensor]:
    """Yield the batches of a fit."""
    examples = arrow_rows.read(folder / "rows.arrow").examples
    plain = Transform("image", torch.zeros(SHAPE[0]), torch.ones(SHAPE[0]))
    rows = StreamedRows(examples, plain, "cpu")
    for index in epoch_order(len(rows), epoch, Seed(0)).split(BATCH):
        yield rows.take(index)[0]


def by_ray(folder: Path, epoch: int, *, everything: bool) -> Iterator[Tensor]:
    """Yield the batches of Ray Data."""
    dataset = ray.data.read_parquet(str(folder / "parquet"), shuffle=None if everything else "files")
    dataset = dataset.random_shuffle(seed=epoch) if everything else dataset
    buffer = None if everything else BUFFER
    for batch in dataset.iter_batches(batch_size=BATCH, local_shuffle_buffer_size=buffer, batch_format="numpy"):
        yield torch.from_numpy(np.stack(batch["input"])).float() / 255


def epoch_of(batches: Iterator[Tensor], images: int) -> tuple[float, float, bool]:
    """Return the seconds of an epoch, the most memory in GB, and whether each image came once."""
    before = memory()
    seen, most, over = np.zeros(images, np.int64), [0.0], threading.Event()

    def sample() -> None:
        while not over.wait(0.1):
            most[0] = max(most[0], memory() - before)

    watch = threading.Thread(target=sample, daemon=True)
    watch.start()
    start = time.perf_counter()
    for batch in batches:
        first = (batch.flatten(1)[:, :4] * 255).round().to(torch.uint8).numpy()
        np.add.at(seen, np.ascontiguousarray(first).view("<u4")[:, 0], 1)
    seconds = time.perf_counter() - start
    over.set()
    watch.join()
    return seconds, most[0], bool((seen == 1).all())


def memory() -> float:
    """Return the GB of this process and its children, without the pages of files."""
    total = 0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("Pss_Anon", "Pss_Shmem")))
    return total * 1024 / 1e9


if __name__ == "__main__":
    main()

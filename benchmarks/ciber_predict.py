"""CIBER for classes: the cost of a prediction beyond the snapshots' trunks and last layers.

Each form is timed on 10,000 images × 28 snapshots × 10 classes by default. For each image, snapshot and class it
chooses the weights with the largest range·|feature|, averages, clamps the averages to the bounds and divides them by
their sum. Features are rectified normal numbers; weights are normal around a network's, so that each has a range.

    python benchmarks/ciber_predict.py --threads 2

"processor" is the processor time of all threads together, which other work on the machine disturbs less.
Goal: 5 s on two cores.
"""

import argparse
import json
import time

import torch

from bdl_pipe.collapsed.classes import CiberConfig, CubicConfig, ExactConfig, Form, SoftmaxConfig, cubics, log_probs
from bdl_pipe.collapsed.head import Collapsed, Head
from bdl_pipe.seeds import Seed

FORMS: tuple[Form, ...] = (
    ExactConfig(1),
    ExactConfig(2),
    SoftmaxConfig(),
    CubicConfig(1, 1),
    CubicConfig(1, 8),
    CubicConfig(3, 8),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--snapshots", type=int, default=28)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--width", type=int, default=512, help="features (512 of a VGG-16)")
    parser.add_argument("--batch", type=int, default=250)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps({"torch": torch.__version__, **vars(options)}), flush=True)
    for form in FORMS:
        seconds, processor, choosing = timed(form, options)
        print(f"{form}: {seconds:.2f} s, processor {processor:.2f} s; of which to choose {choosing:.2f} s", flush=True)


@torch.no_grad()
def timed(form: Form, options: argparse.Namespace) -> tuple[float, float, float]:
    """Seconds, processor seconds, and the seconds that choosing the weights takes."""
    generator = Seed(0).generator()
    shape = (options.snapshots, options.classes, options.width)
    base = torch.randn(shape[1:], generator=generator) / options.width**0.5
    weight = base + 0.02 * torch.randn(shape, generator=generator)
    head = Head.of(weight.to(options.device), torch.zeros(shape[:2], device=options.device))
    features = torch.randn((options.batch, options.width), generator=generator).relu().to(options.device)
    if isinstance(form, CubicConfig):
        cubics(form.pieces)  # fitted once in a process
    count, choosing = CiberConfig(form).count(options.width), 0.0
    logits = 3 * features @ head.weights[:, :, :-1].mT  # [snapshot, image, class]
    start, processor = time.perf_counter(), time.process_time()
    for _ in range(-(-options.images // options.batch)):
        before = time.perf_counter()
        chosen = [head.collapse(number, features, count) for number in range(options.snapshots)]
        collapsed = Collapsed(*(torch.stack(parts) for parts in zip(*chosen, strict=True)))
        choosing += time.perf_counter() - before
        log_probs(logits, collapsed, form)
    if options.device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - processor, choosing


if __name__ == "__main__":
    main()

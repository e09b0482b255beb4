"""The price of inducing weights: prediction, a training step, and bytes stored.

(a) log-probabilities under K draws of FFG-U: ConvNet 128-256-512, one batch and four batches of 32 images at 32×32,
    which share our draws. Times are divided by an ensemble of K deterministic networks and by a plain loop. The loop
    computes for each batch and draw the paper's formulas (eqs 11-12) term by term, like the authors' code: every factor
    again, Ψ⁻¹Z for each draw, mean and noise separately. "lean loop" also computes the factors again, but applies Ψ⁻¹
    to the small matrix and computes mean and noise in one product. "channels_last" is the loop on images in this memory
    order, which our code chooses on a CPU. "new factors" is our code with an empty cache; "kept factors" is our code
    with the factors of an earlier call, the usual case.
(b) a training step (forward, backward; one draw) over the deterministic network's.
(c) bytes on disk of a fitted posterior over the network's: this ConvNet and ResNet-50; M = 64.

    export MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_MMAP_THRESHOLD_=4000000000
    python benchmarks/inducing.py --device cpu --threads 2

With glibc's default limits a pass may return its memory and take it again page by page, 15 ms for this network,
depending on the places of other blocks on the heap; with the limits above no form does so.

The forms of a case run in turn, so that a busy machine slows all of them; figures are medians, ratios are of
medians. Goals: K = 20 at least 1.15 times as fast as the loop on a CPU, and within 1.3 of the ensemble.
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call

from bdl_pipe import networks
from bdl_pipe.inducing import Bayesian, bayesianize, draws, kl, stored
from bdl_pipe.inducing.layers import Inducing
from bdl_pipe.networks import ConvNetConfig, ResNetConfig
from bdl_pipe.seeds import Seed

Step = Callable[[], object]
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--draws", type=int, nargs="+", default=[1, 5, 20])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--only", choices=["predict", "train", "disk"], nargs="+", default=["predict", "train", "disk"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps({"torch": torch.__version__, "device": options.device, "threads": options.threads}), flush=True)
    net = bayesianize(convnet(0), kind="ffg_u", rows=64, cols=64).to(options.device)
    if "predict" in options.only:
        for batches in options.batches:
            for count in options.draws:
                forms = predictions(net, count, images(options.device, batches))
                compare(f"{count} draws, {batches} x 32 images", forms, options.repeats, options.device)
    if "train" in options.only:
        for batches in options.batches:
            forms = training(net, images(options.device, batches))
            compare(f"training step, {batches * BATCH} images", forms, options.repeats, options.device)
    if "disk" in options.only:
        disk()


def compare(name: str, forms: dict[str, Step], repeats: int, device: str) -> None:
    """Time the forms in turn and print a line for each; the first form is the baseline."""
    times: dict[str, list[float]] = {form: [] for form in forms}
    for step in forms.values():
        step()
    for _ in range(repeats):
        for form, step in forms.items():
            start = time.perf_counter()
            step()
            if device != "cpu":
                torch.cuda.synchronize()
            times[form].append(time.perf_counter() - start)
    base = statistics.median(next(iter(times.values())))
    for form, taken in times.items():
        middle, spread = statistics.median(taken), (max(taken) - min(taken)) / statistics.median(taken)
        line = {"case": name, "form": form, "ms": round(1e3 * middle, 2), "ratio": round(middle / base, 4)}
        print(json.dumps(line | {"range": round(spread, 3)}), flush=True)


def convnet(seed: int) -> nn.Module:
    return networks.build(ConvNetConfig("convnet", 128), (3, 32, 32), 10, rng=Seed(seed))


def images(device: str, batches: int = 1) -> Tensor:
    return torch.randn(batches * BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)


def predictions(net: Bayesian, count: int, pictures: Tensor) -> dict[str, Step]:
    net.eval()
    ensemble = [convnet(k).to(pictures.device).eval() for k in range(count)]
    generator = torch.Generator(pictures.device).manual_seed(0)
    last = pictures.clone(memory_format=torch.channels_last)

    def of_ensemble(inputs: Tensor) -> Step:
        return lambda: each(inputs, [lambda part, m=member: m(part) for member in ensemble])

    def by_loop(inputs: Tensor, *, lean: bool = False) -> Step:
        def plain(part: Tensor) -> Tensor:
            return functional_call(net.network, plain_draw(net, generator, lean), (part,))

        return lambda: each(inputs, [plain] * count)

    return {
        "ensemble": of_ensemble(pictures),
        "ensemble, channels_last": of_ensemble(last),
        "loop": by_loop(pictures),
        "loop, channels_last": by_loop(last),
        "lean loop": by_loop(pictures, lean=True),
        "ours, new factors": lambda: draws(forgotten(net), pictures, count, generator, rows=BATCH),
        "ours, kept factors": lambda: draws(net, pictures, count, generator, rows=BATCH),
    }


@torch.no_grad()
def each(inputs: Tensor, networks: list[Callable[[Tensor], Tensor]]) -> Tensor:
    """Log-probabilities of each network on each batch [network, image, class]."""
    found = [torch.stack([net(part).log_softmax(-1) for net in networks]) for part in inputs.split(BATCH)]
    return torch.cat(found, 1)


def forgotten(net: Bayesian) -> Bayesian:
    """The same network with an empty cache of factors."""
    twin = copy.copy(net)
    twin._cache = copy.deepcopy(net._cache)
    return twin


def plain_draw(net: Bayesian, generator: torch.Generator, lean: bool) -> dict[str, Tensor]:
    """A draw of all weights by the paper's formulas; every factor is computed again."""
    found: dict[str, Tensor] = {}
    for key, place in net.places.items():
        layer = net.layers[key]
        assert isinstance(layer, Inducing) and layer.posterior is not None
        found |= place.lend(plain_matrix(layer, generator, lean))
    return found


def plain_matrix(layer: Inducing, generator: torch.Generator, lean: bool) -> Tensor:
    """Eqs 11-12 for whitened U, in the parameters' type. ``lean`` applies Ψ⁻¹ to the small matrix, not to Z, and
    computes mean and noise in one product.
    """
    z_r, z_c = layer.z_out, layer.z_in
    d_r, d_c = layer.log_d_out.exp(), layer.log_d_in.exp()
    (rows, out), (cols, columns) = z_r.shape, z_c.shape

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=z_r.device)

    def factor(z: Tensor, d: Tensor) -> Tensor:
        jitter = 1e-5 * torch.eye(len(z), device=z.device)
        return torch.linalg.cholesky(z @ z.mT + torch.diag(d.square()) + jitter)

    l_r, l_c = factor(z_r, d_r), factor(z_c, d_c)
    hat_r, hat_c = factor(z_r, 0 * d_r), factor(z_c, 0 * d_c)
    mean, sd = layer.posterior.mean, layer.posterior.sd  # type: ignore[union-attr]
    inducing = l_r @ (mean + sd * normal(rows, cols)) @ l_c.mT
    weight = normal(out, columns)
    bar = z_r @ weight @ z_c.mT + hat_r @ normal(rows, cols) * d_c
    bar = bar + d_r[:, None] * normal(rows, cols) @ hat_c.mT + d_r[:, None] * normal(rows, cols) * d_c
    if not lean:
        to_rows, to_columns = torch.cholesky_solve(z_r, l_r).mT, torch.cholesky_solve(z_c, l_c)  # Z_rᵀΨ_r⁻¹, Ψ_c⁻¹Z_c
        noise = weight - to_rows @ bar @ to_columns
        return layer.scale * (to_rows @ inducing @ to_columns + layer.rescale * noise)
    inner = torch.cholesky_solve(inducing - layer.rescale * bar, l_r)
    inner = torch.cholesky_solve(inner.mT, l_c).mT
    return layer.rescale * layer.scale * weight + layer.scale * z_r.mT @ inner @ z_c


def training(net: Bayesian, pictures: Tensor) -> dict[str, Step]:
    plain = convnet(0).to(pictures.device).train()
    net.train()
    labels = torch.arange(len(pictures), device=pictures.device) % 10
    last = pictures.clone(memory_format=torch.channels_last)

    def of_plain(inputs: Tensor) -> None:
        plain.zero_grad()
        F.cross_entropy(plain(inputs), labels).backward()

    def ours(inputs: Tensor) -> None:
        net.zero_grad()
        (F.cross_entropy(net(inputs), labels) + kl(net) / 50_000).backward()

    return {
        "deterministic": lambda: of_plain(pictures),
        "deterministic, channels_last": lambda: of_plain(last),
        "ours": lambda: ours(pictures),
        "ours, channels_last": lambda: ours(last),
    }


def disk() -> None:
    """Bytes of the saved tensors, normalisation's running statistics included on both sides."""
    resnet = networks.build(ResNetConfig("resnet", depth=50), (3, 32, 32), 10, rng=Seed(0))
    for name, plain in {"ConvNet 128-256-512": convnet(0), "ResNet-50": resnet}.items():
        net = bayesianize(plain, kind="ffg_u", rows=64, cols=64)
        sizes = [saved(module) for module in (plain, net)]
        line = {"case": name, "network": sizes[0], "posterior": sizes[1], "ratio": round(sizes[1] / sizes[0], 4)}
        print(json.dumps(line | {"parameters": [stored(plain), stored(net)]}), flush=True)


def saved(module: nn.Module) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        save_file({k: v.contiguous() for k, v in module.state_dict().items()}, path)
        return path.stat().st_size


if __name__ == "__main__":
    main()

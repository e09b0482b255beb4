"""Laplace's approximation and SWAG: the times of fits and draws beside other code, and the error of float32.

(a) A K-FAC fit of the last layer and of all layers on 2,000 rows, and 20 draws of each, beside laplace-torch and its
    backends. CurvlinopsEF has another matrix: the empirical Fisher, of one backward pass in place of one for each class
    (``pip install --no-deps laplace-torch==0.3 asdfghjkl backpack-for-pytorch unfoldNd opt_einsum``, torch without
    torchvision; left out, with a message, if it is not installed). Its draws are vectors of the drawn weights; ours are
    whole networks, ready to predict. It does not support normalisation's weights, which are frozen for it.
(b) 30 draws of SWAG beside the package swa_gaussian (``pip install --no-deps swa_gaussian``; left out, with a message,
    if it is not installed), for two networks. Ours begins with the stored snapshots and keeps every draw; the package
    has its moments at hand, and each of its draws replaces the one before.
(c) The posterior of float32 passes against the posterior of float64 passes, in units of the latter's deviations.

    python -m benchmarks.laplace_swag            # CPU seconds of one thread, which other work changes little
    python -m benchmarks.laplace_swag --cases last draws --repeats 9

The networks are the default one of Fashion-MNIST and a perceptron, trained here for a few seconds on scikit-learn's
digits at its size. The forms of a case run in turn in one process. Figures are medians in ms; the three ratios are the
quartiles of theirs over ours of the same turn. Goal: all ratios above 1 at equal precision; (c) below 0.01.
"""

import argparse
import dataclasses
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import sklearn.datasets
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bdl_pipe.artifacts import State, stack
from bdl_pipe.config import read, to_mapping
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.networks import ConvNetConfig, MlpConfig, Network, NetworkConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory import laplace, swag
from bdl_pipe.trajectory.curvature import LayerPosterior, evidence_precision
from bdl_pipe.trajectory.snapshots import FLOATS, FloatName, Snapshots

ROWS, DRAWS, SWAG_DRAWS, RANK, BATCH = 2000, 20, 30, 20, 128
CONVNET = ConvNetConfig("convnet", 16, norm="instance", pool="average")
NETWORKS: dict[str, NetworkConfig] = {"ConvNet": CONVNET, "perceptron 784-200-200-10": MlpConfig("mlp", (200, 200))}
BACKENDS = ("CurvlinopsGGN", "AsdlGGN", "CurvlinopsEF")
SWAG = swag.SwagConfig(rank=RANK, scale=1.0, draws=SWAG_DRAWS, batch_norm_rows=2048, batch_norm_batch=64)
LAPLACE = laplace.KfacLaplaceConfig(
    layers="last",
    prior_precision=None,
    temperature=1.0,
    rows=None,
    predictive="draws",
    max_factor=2048,
    draws=DRAWS,
    batch_norm_rows=2048,
    batch_norm_batch=64,
)
Form = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", nargs="+", choices=["last", "all", "draws", "swag", "error"], help="default: every one"
    )
    parser.add_argument("--repeats", type=int, default=5, help="of fits; draws are repeated six times as often")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, wanted = digits(), options.cases or ["last", "all", "draws", "swag", "error"]
    for name, network in NETWORKS.items():
        print(json.dumps({"network": name}))
        run(data, trained(data, NetworkSpec(network, (1, 28, 28), 10, "categorical")), wanted, options.repeats)


def run(data: FitData, trajectory: State, wanted: list[str], repeats: int) -> None:
    """Print a line for each wanted case of one network."""
    for layers in ("last", "all"):
        for dtype in FLOATS:
            if layers in wanted:
                compare(f"fit, {layers}, {dtype}", fits(data, trajectory, layers, dtype), repeats)
            if "draws" in wanted:
                compare(f"draws, {layers}, {dtype}", draws(data, trajectory, layers, dtype), 6 * repeats)
    for dtype in FLOATS:
        if "swag" in wanted:
            compare(f"SWAG draws, {dtype}", swag_draws(data, trajectory, dtype), 6 * repeats)
    if "error" in wanted:
        for layers in ("last", "all"):
            print(json.dumps({"case": f"float32, {layers}"} | error(data, trajectory, layers)))


def digits() -> FitData:
    """scikit-learn's digits at the size of Fashion-MNIST, with the first digits twice: 2,000 rows."""
    found = sklearn.datasets.load_digits()
    images = F.interpolate(torch.tensor(found.images)[:, None], size=28, mode="bilinear").mul(15.9).byte().numpy()
    chosen = np.arange(ROWS) % len(images)
    rows = Examples(images[chosen], found.target[chosen].astype(np.int64))
    transform = Transform("image", torch.full((1,), 0.3), torch.full((1,), 0.3))
    return FitData("classification", rows, rows, transform, tuple("0123456789"))


def trained(data: FitData, spec: NetworkSpec) -> State:
    """A trajectory of ``RANK`` snapshots at a constant rate, after two epochs."""
    network, past = spec.build(Seed(0)), list[dict[str, Tensor]]()
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    inputs, labels = data.tensors("train")
    for step in range(60 + RANK):
        rows = torch.randperm(ROWS, generator=Seed(1).fold(step).generator())[:64]
        optimiser.zero_grad()
        F.cross_entropy(network(inputs[rows]), labels[rows]).backward()
        optimiser.step()
        if step >= 60:
            past.append({name: value.clone() for name, value in network.state_dict().items()})
    return State(stack(past), {"spec": to_mapping(spec)})


def spec_of(trajectory: State) -> NetworkSpec:
    return read(NetworkSpec, trajectory.config["spec"], "spec")


def at_end(trajectory: State) -> Network:
    network = spec_of(trajectory).build(Seed(0))
    network.load_state_dict({name: past[-1] for name, past in trajectory.tensors.items()})
    return network


def config(layers: str, dtype: FloatName) -> laplace.KfacLaplaceConfig:
    return dataclasses.replace(LAPLACE, layers=layers, dtype=dtype)  # type: ignore[arg-type]


def fitted(data: FitData, trajectory: State, layers: str, dtype: FloatName) -> dict[str, LayerPosterior]:
    return laplace.posterior(at_end(trajectory), spec_of(trajectory), data, config(layers, dtype), Seed(3))


def package(
    data: FitData, trajectory: State, layers: str, dtype: FloatName, backend: str = BACKENDS[0]
) -> tuple[Any, DataLoader[Any]] | None:
    """laplace-torch's posterior, not fitted yet, and its rows."""
    if not importlib.util.find_spec("laplace"):
        print("the package laplace-torch is not installed: see the first lines of this file")
        return None
    from laplace import Laplace, curvature

    network, (inputs, labels) = at_end(trajectory).to(FLOATS[dtype]), data.tensors("train")
    for name, weight in network.named_parameters():
        owner = network.get_submodule(name.rpartition(".")[0])
        weight.requires_grad_(isinstance(owner, nn.Linear | nn.Conv2d))
    loader = DataLoader(TensorDataset(inputs.to(FLOATS[dtype]), labels), batch_size=BATCH)
    subset = {"last": "last_layer", "all": "all"}[layers]
    settings = {"subset_of_weights": subset, "hessian_structure": "kron", "backend": getattr(curvature, backend)}
    return Laplace(network, "classification", **settings), loader


def fits(data: FitData, trajectory: State, layers: str, dtype: FloatName) -> dict[str, Form]:
    forms: dict[str, Form] = {"ours": lambda: fitted(data, trajectory, layers, dtype)}
    for backend in BACKENDS:
        if (theirs := package(data, trajectory, layers, dtype, backend)) is not None:
            forms[backend] = partial(theirs[0].fit, theirs[1])
    return forms


def draws(data: FitData, trajectory: State, layers: str, dtype: FloatName) -> dict[str, Form]:
    found, settings = fitted(data, trajectory, layers, "float64"), config(layers, dtype)
    snapshots = Snapshots(trajectory, data, settings, Seed(3))
    forms: dict[str, Form] = {
        "ours": lambda: laplace.networks(found, 1.0, snapshots, settings, rng=Seed(3), report=Silent())
    }
    if (theirs := package(data, trajectory, layers, dtype)) is not None:
        theirs[0].fit(theirs[1])
        forms["laplace-torch"] = lambda: theirs[0].sample(DRAWS)
    return forms


def swag_draws(data: FitData, trajectory: State, dtype: FloatName) -> dict[str, Form]:
    settings, inputs = dataclasses.replace(SWAG, dtype=dtype), {"trajectory": [trajectory]}
    forms: dict[str, Form] = {"ours": lambda: swag.fit(data, inputs, settings, rng=Seed(3), report=Silent())}
    if (theirs := swag_package(trajectory, FLOATS[dtype])) is not None:
        forms["swa_gaussian"] = lambda: [theirs.sample(1.0, cov=True) for _ in range(SWAG_DRAWS)]
    return forms


def swag_package(trajectory: State, dtype: torch.dtype) -> Any:
    """swa_gaussian's posterior of the snapshots."""
    if not importlib.util.find_spec("swag"):
        print("the package swa_gaussian is not installed: see the first lines of this file")
        return None
    # its networks, data sets and densities need torchvision and an old gpytorch; draws do not
    unused = ("swag.models", "swag.data", "gpytorch", "gpytorch.lazy", "gpytorch.distributions")
    sys.modules.update({name: MagicMock() for name in unused})
    from swag.posteriors import SWAG as Package

    network = at_end(trajectory).to(dtype)
    made = Package(lambda: at_end(trajectory).to(dtype), no_cov_mat=False, max_num_models=RANK)
    for number in range(RANK):
        network.load_state_dict({name: past[number] for name, past in trajectory.tensors.items()})
        made.collect_model(network)
    return made


def compare(case: str, forms: dict[str, Form], repeats: int) -> None:
    """Time the forms in turn and print one line."""
    times: dict[str, list[float]] = {form: [] for form in forms}
    for run in forms.values():
        run()
    for _ in range(repeats):
        for form, run in forms.items():
            start = time.process_time()
            run()
            times[form].append(time.process_time() - start)
    line: dict[str, object] = {"case": case} | {form: round(1e3 * statistics.median(t), 2) for form, t in times.items()}
    ours = times.pop("ours")
    for form, theirs in times.items():
        quartiles = statistics.quantiles([b / a for a, b in zip(ours, theirs, strict=True)])
        line[f"{form} over ours"] = [round(ratio, 2) for ratio in quartiles]
    print(json.dumps(line), flush=True)


def error(data: FitData, trajectory: State, layers: str) -> dict[str, float]:
    """Return the largest relative differences of float32 from float64, over layers.

    One is the difference of the weights' standard deviations along each direction of the float64 posterior, the other
    is the difference of the prior precision.
    """
    exact, rough = (fitted(data, trajectory, layers, dtype) for dtype in ("float64", "float32"))
    precision, other_precision = (evidence_precision(list(found.values())) for found in (exact, rough))
    deviations = 0.0
    for name, layer in exact.items():
        other = rough[name]
        left, right = layer.output_vectors.T @ other.output_vectors, other.input_vectors.T @ layer.input_vectors
        seen = left.square() @ (1 / (other.curvature + other_precision)) @ right.square()
        relative = (seen * (layer.curvature + precision)).sqrt() - 1
        deviations = max(deviations, float(relative.abs().max()))
    return {"deviations": deviations, "prior precision": abs(other_precision / precision - 1)}


if __name__ == "__main__":
    main()

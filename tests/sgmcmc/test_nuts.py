"""The reference by NUTS, benchmarks/references/sgmcmc_nuts.py: its log joint and its z-scores."""

import numpy as np

from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc.target import NetworkTarget
from benchmarks.references.sgmcmc_nuts import compare, function, log_joint
from benchmarks.toys.problems import regression


def test_the_log_joint_equals_the_targets_log_density_up_to_a_constant() -> None:
    """Differences between three positions drop the constant; the function on the grid agrees, too."""
    problem = regression()
    spec = problem.target.spec(problem.data)
    target = NetworkTarget(spec, [problem.data.rows("train")] * 3, problem.target.prior_precision)
    at = target.from_prior([Seed(c) for c in range(3)])
    value, _ = target.whole()(at)
    x, y = (part.double().numpy()[:, 0] for part in problem.data.tensors("train"))
    precisions = problem.target.prior_precision, problem.target.precision(problem.data)
    ours = np.array([log_joint(w, x, y, *precisions, np) for w in at.double().numpy()])
    np.testing.assert_allclose(ours - ours[0], (value - value[0]).numpy(), rtol=1e-5)
    grid = problem.inputs.double().numpy()[:, 0]
    for weights in at:
        expected = target.network.outputs(weights[None], problem.inputs)[0, :, 0].detach().numpy()
        np.testing.assert_allclose(function(weights.double().numpy(), grid, np), expected, rtol=1e-4, atol=1e-4)


def test_z_scores_tell_two_laws_apart() -> None:
    """Independent draws of N(1, 4) at 20 points: z is about N(0, 1); told apart: a deviation 10 % and a mean .1 sd off.

    False alarm: one of 40 standard normal numbers beyond 5, one in 40,000 seeds; this one is fixed.
    """
    random = Seed(0).numpy()
    one, other = (1 + 2 * random.standard_normal((4, 1000, 20)) for _ in range(2))
    right = compare(one, other)
    assert max(right["mean_z_largest"], right["sd_z_largest"]) < 5
    assert 0.5 < right["mean_z_rms"] < 1.7 and 0.5 < right["sd_z_rms"] < 1.7
    wrong = compare(one, 1.2 + 2.2 * random.standard_normal((4, 1000, 20)))
    assert wrong["mean_z_rms"] > 3 and wrong["sd_z_rms"] > 3

"""Addresses of randomness: pinned, unambiguous, independent."""

import itertools

import numpy as np
import scipy.stats
import torch

from bdl_pipe.seeds import Seed

PINNED = [  # the first 8 bytes of `printf ADDRESS | sha256sum`, without the last bit
    (Seed(0), 7520536977032167579),  # [0]
    (Seed(0).fold("student", "vbpc", 3), 1043944982575666253),  # [0, "student", "vbpc", 3]
    (Seed(1).fold("a", 1), 8249067191164116021),  # [1, "a", 1]
    (Seed(1).fold("a1"), 5579273774694058745),  # [1, "a1"]
]


def test_the_integers_of_seeds_are_pinned_and_have_63_bits() -> None:
    assert [(seed, seed.integer()) for seed, _ in PINNED] == PINNED
    values = [Seed(r).fold("x", i).integer() for r, i in itertools.product(range(3), range(50))]
    assert all(0 <= v < 2**63 for v in values)
    assert any(v >= 2**62 for v in values)


def test_different_addresses_give_different_integers() -> None:
    of_one = [("a", 1), ("a1",), ("a", "1"), ("a, 1",), ('a", "1',), (1, "a"), ("",), (0,), (-1,)]
    places = [Seed(0), Seed(1), Seed(10).fold("a"), Seed(1).fold(0, "a"), Seed(0, ("a",))]
    places += [Seed(0).fold(*address) for address in of_one]
    assert len({p.integer() for p in places}) == len(places) == 14


def test_folding_in_steps_is_folding_at_once_and_each_generator_of_a_seed_starts_at_its_beginning() -> None:
    assert Seed(3).fold("a").fold(1, "b") == Seed(3).fold("a", 1, "b")
    seed = Seed(3).fold("x")
    assert torch.equal(torch.rand(5, generator=seed.generator()), torch.rand(5, generator=seed.generator()))
    assert np.array_equal(seed.numpy().random(5), seed.numpy().random(5))
    assert not torch.equal(torch.rand(5, generator=seed.generator()), torch.rand(5, generator=Seed(4).generator()))


def test_the_global_state_of_torch_is_neither_read_nor_changed() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = torch.rand(5, generator=Seed(3).generator())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(5, generator=Seed(3).generator()), one)


def test_neighbouring_addresses_are_independent() -> None:
    """First draws of 2,000 neighbouring steps: uniform and uncorrelated; false alarms: 2 in 10,000, seeds fixed."""
    steps = [Seed(0).fold("step", t) for t in range(2000)]
    first = torch.stack([torch.rand(2, generator=s.generator(), dtype=torch.float64) for s in steps]).numpy()
    assert scipy.stats.kstest(first[:, 0], "uniform").pvalue > 1e-4
    assert scipy.stats.pearsonr(first[1:, 0], first[:-1, 0]).pvalue > 1e-4
    same = np.full(2000, first[0, 0])  # the control: one stream for all steps
    assert scipy.stats.kstest(same, "uniform").pvalue < 1e-4

"""The pool's networks, compiled and in bfloat16: the same distillation up to round-off, and an exact resume."""

import shutil
from typing import Any

import pytest
import torch

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.vbpc import method
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import ConvNetConfig, build
from bdl_pipe.networks.base import trunk_pass
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from tests.cases import fit
from tests.resuming import resumed, same_bits

from .cases import tiny_data, tiny_vbpc
from .test_distil import distil_coreset

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
DATA, AT = tiny_data(), Seed(0).fold("coreset")


def settings(blocks: int = 2, **pool: Any) -> method.VbpcConfig:
    changes = {"network": {"pool": "average", "blocks": blocks}, "coreset": {"steps": 8, "pool": pool}}
    return config.read(method.VbpcConfig, config.merge(tiny_vbpc(), changes), "methods.vbpc")


def distilled(blocks: int = 2, **pool: Any) -> State:
    return distil_coreset(DATA, {}, settings(blocks, **pool), rng=AT, report=Silent())


def apart(first: State, second: State) -> float:
    """Return the largest difference of images and labels."""
    return max(float((first.tensors[name] - second.tensors[name]).abs().max()) for name in ("images", "labels"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "blocks", "most"),
    [
        pytest.param({"compiled": True}, 2, 1e-4, marks=[needs_compiler, pytest.mark.soak]),
        pytest.param({"compiled": True, "precision": "bfloat16"}, 1, 0.1, marks=needs_compiler),
        pytest.param({"precision": "bfloat16"}, 2, 0.1),
    ],
    ids=["compiled", "both", "bfloat16"],
)
def test_compiled_and_bfloat16_passes_distil_nearly_the_same_and_resume(
    pool: dict[str, Any], blocks: int, most: float
) -> None:
    """Each of the eight steps moves a label by at most .1, and an image by .01; .1 is less than two of them.

    Each fit compiles its own passes: one block in ``make test``, two in ``make soak``.
    """
    undisturbed = distilled(blocks, **pool)
    assert 0 < apart(undisturbed, distilled(blocks)) < most

    def distil(report: Report) -> State:
        return distil_coreset(DATA, {}, settings(blocks, **pool), rng=AT, report=report)

    assert same_bits(undisturbed, resumed(distil, 3))


def test_frepo_obeys_the_precision_of_its_pool() -> None:
    rounded = config.merge(tiny_vbpc()["coreset"], {"pool": {"precision": "bfloat16"}})
    made = [fit("frepo", "coreset", DATA, rng=AT, coreset=coreset) for coreset in (tiny_vbpc()["coreset"], rounded)]
    assert apart(*made) > 0


def test_features_and_gradients_in_low_precision_are_near_float64() -> None:
    """Relative error of features and of the images' gradient: bfloat16 has 8 bits, float32 24.

    A unit that is nearly 0 may be on the other side in bfloat16, so its gradient is not as close as its features.
    """
    network = build(ConvNetConfig("convnet", 4, 2, "instance"), (1, 8, 8), 3, rng=Seed(0))
    images = torch.randn(16, 1, 8, 8, generator=Seed(1).generator())
    slope = torch.randn(16, network.width, generator=Seed(2).generator(), dtype=torch.float64)

    def found(run: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = images.to(dtype).requires_grad_()
        features = run(network.to(dtype).trunk, leaf)
        (gradient,) = torch.autograd.grad((features.double() * slope).sum(), leaf)
        return features.detach().double(), gradient.double()

    exact = found(trunk_pass(False, "float32", "cpu"), torch.float64)
    for precision, most in (("float32", (1e-6, 1e-5)), ("bfloat16", (0.01, 0.1))):
        near = found(trunk_pass(False, precision, "cpu"), torch.float32)  # type: ignore[arg-type]
        errors = [float((a - b).norm() / b.norm()) for a, b in zip(near, exact, strict=True)]
        assert all(error < bound for error, bound in zip(errors, most, strict=True)), (precision, errors)
        assert errors[0] > most[0] / 100  # the pass really has this precision


def test_a_compiled_pool_without_a_cpp_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"compiled.*needs a C\+\+ compiler.*no no-such-compiler"):
        distilled(compiled=True)

"""The settings of torch with which a GPU repeats its bits; results/gpu shows on a GPU that it does."""

from collections.abc import Iterator

import pytest
import torch

from pipeline.work.process import repeat_bits


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    tf32 = torch.backends.cudnn.allow_tf32
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.allow_tf32 = tf32


def test_repeat_bits_sets_determinism_and_full_float32_for_a_gpu_only(flags: None) -> None:
    torch.backends.cudnn.allow_tf32 = True
    repeat_bits("cpu")
    assert torch.backends.cudnn.allow_tf32 and not torch.are_deterministic_algorithms_enabled()
    repeat_bits("cuda:0")
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.backends.cudnn.allow_tf32 and not torch.utils.deterministic.fill_uninitialized_memory

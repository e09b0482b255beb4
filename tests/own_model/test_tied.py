"""Models with tied weights, as T5: one method takes them, and the others say so before they read a row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bdl_pipe import ModulePosterior, UserError, bayesianise
from bdl_pipe.own_model.methods import OWN

from .models import Answering, text_loader, texts

NOTE = "the posterior is over a copy of lm_head.weight; shared.weight, which is the same weight, stays as it is"


class Unread:
    """A loader that must not be read."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the rows were read")


def model(*, tied: bool = True) -> nn.Module:
    """Return a model; without ties between embedding and head it has the same weights, the head a copy."""
    torch.manual_seed(0)
    found = Answering()
    if not tied:
        found.lm_head.weight = nn.Parameter(found.shared.weight.detach().clone())
    return found


def tensors(found: ModulePosterior) -> dict[str, Tensor]:
    return dict(found.inner.state().tensors)


def test_a_tied_head_has_the_posterior_of_a_copy_and_a_note_says_so() -> None:
    inputs, _ = texts(20, 1)
    tied, before = model(), {name: value.clone() for name, value in model().state_dict().items()}
    found, meant = (bayesianise(of, "kfac_laplace", text_loader(60)) for of in (tied, model(tied=False)))
    assert tensors(found).keys() == tensors(meant).keys()
    assert all(torch.equal(value, tensors(meant)[name]) for name, value in tensors(found).items())
    assert torch.equal(found.predict(inputs).mean, meant.predict(inputs).mean)
    assert NOTE in found.notes and NOTE not in meant.notes
    assert all(torch.equal(value, before[name]) for name, value in tied.state_dict().items())
    assert tied.lm_head.weight is tied.shared.weight


def test_draws_of_the_head_leave_the_embedding_as_it_is() -> None:
    """A head that all draws share has one predictive: these differ, and their trunk is the model's."""
    inputs, _ = texts(20, 1)
    of = model()
    found = bayesianise(of, "kfac_laplace", text_loader(60))
    assert found.predict(inputs).mutual_information().max() > 1e-3
    drawn = dict(found.trunk.named_buffers())
    for name in ("module.shared.weight", "module.encoder.embed_tokens.weight"):
        assert name not in drawn or torch.equal(drawn[name], of.shared.weight.detach()), name
    assert any(torch.equal(value, of.shared.weight.detach()) for value in drawn.values())


def test_it_is_stored_and_read_to_the_bit(tmp_path: Path) -> None:
    inputs, _ = texts(20, 1)
    of = model()
    found = bayesianise(of, "kfac_laplace", text_loader(60))
    found.save(tmp_path / "mine")
    again = ModulePosterior.load(tmp_path / "mine", of)
    assert torch.equal(again.predict(inputs).mean, found.predict(inputs).mean) and again.notes == found.notes


@pytest.mark.parametrize("method", [name for name in OWN if name not in ("kfac_laplace", "dark_knowledge")])
def test_other_methods_say_so_before_they_read_a_row(method: str) -> None:
    rule = r"^model must have one name for each weight, except with kfac_laplace over the last layer without epochs, "
    got = "got 'shared.weight and encoder.embed_tokens.weight, which are the same weight'$"
    with pytest.raises(UserError, match=rule + got):
        bayesianise(model(), method, Unread(), epochs=1)


@pytest.mark.parametrize("options", [{"epochs": 1}, {"config": {"layers": "all"}}])
def test_so_does_a_laplace_that_moves_or_draws_the_trunk(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^model must have one name for each weight"):
        bayesianise(model(), "kfac_laplace", Unread(), **options)

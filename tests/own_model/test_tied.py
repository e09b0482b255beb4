"""Models with tied weights, like T5: last-layer Laplace takes them; other methods refuse before they read a row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bdl_pipe import ModulePosterior, UserError, bayesianise
from bdl_pipe.own_model.start import able

from .models import Answering, text_loader, texts

NOTE = "the posterior is over a copy of lm_head.weight; shared.weight, which is the same weight, stays as it is"


class Unread:
    """A loader that must not be read."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the rows were read")


def model(*, tied: bool = True) -> nn.Module:
    """Return a model; if it is not tied, its head has a copy of the embedding's weight."""
    torch.manual_seed(0)
    found = Answering()
    if not tied:
        found.lm_head.weight = nn.Parameter(found.shared.weight.detach().clone())
    return found


def tensors(found: ModulePosterior) -> dict[str, Tensor]:
    return dict(found.inner.state().tensors)


def test_a_tied_head_has_the_posterior_of_an_untied_copy_and_a_note() -> None:
    inputs, _ = texts(20, 1)
    tied, before = model(), {name: value.clone() for name, value in model().state_dict().items()}
    found, meant = (bayesianise(of, "kfac_laplace", text_loader(60)) for of in (tied, model(tied=False)))
    assert tensors(found).keys() == tensors(meant).keys()
    assert all(torch.equal(value, tensors(meant)[name]) for name, value in tensors(found).items())
    assert torch.equal(found.predict(inputs).mean, meant.predict(inputs).mean)
    assert NOTE in found.notes and NOTE not in meant.notes
    assert all(torch.equal(value, before[name]) for name, value in tied.state_dict().items())
    assert tied.lm_head.weight is tied.shared.weight


def test_draws_of_the_head_leave_the_embedding_unchanged() -> None:
    """The draws have different predictives, so that their heads differ; the embedding is the model's."""
    inputs, _ = texts(20, 1)
    of = model()
    found = bayesianise(of, "kfac_laplace", text_loader(60))
    assert found.predict(inputs).mutual_information().max() > 1e-3
    drawn = dict(found.trunk.named_buffers())
    for name in ("module.shared.weight", "module.encoder.embed_tokens.weight"):
        assert name not in drawn or torch.equal(drawn[name], of.shared.weight.detach()), name
    assert any(torch.equal(value, of.shared.weight.detach()) for value in drawn.values())


def test_a_posterior_of_a_tied_model_is_loaded_to_the_bit(tmp_path: Path) -> None:
    inputs, _ = texts(20, 1)
    of = model()
    found = bayesianise(of, "kfac_laplace", text_loader(60))
    found.save(tmp_path / "mine")
    again = ModulePosterior.load(tmp_path / "mine", of)
    assert torch.equal(again.predict(inputs).mean, found.predict(inputs).mean) and again.notes == found.notes


@pytest.mark.parametrize("method", [name for name in able() if name not in ("kfac_laplace", "dark_knowledge")])
def test_other_methods_refuse_tied_weights_before_they_read_a_row(method: str) -> None:
    rule = r"^model must have one name for each weight, except with kfac_laplace over the last layer without epochs, "
    got = "got 'shared.weight and encoder.embed_tokens.weight, which are the same weight'$"
    with pytest.raises(UserError, match=rule + got):
        bayesianise(model(), method, Unread(), epochs=1)


@pytest.mark.parametrize("options", [{"epochs": 1}, {"config": {"layers": "all"}}])
def test_a_laplace_that_trains_or_draws_the_trunk_refuses_tied_weights(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^model must have one name for each weight"):
        bayesianise(model(), "kfac_laplace", Unread(), **options)

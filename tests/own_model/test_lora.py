"""Adapters of low rank: their layers, their curvature, what is fitted, and the next token of a language model."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl_pipe import NextToken, UserError, bayesianise, lora
from bdl_pipe.own_model.lora import LowRank
from bdl_pipe.trajectory.linearised import LinearisedLaplace

from .models import CLASSES, Answer, Text, text_loader, texts

RANK, ALPHA = 2, 6.0


class Conv1D(nn.Module):
    """The linear layer of GPT-2 in transformers: its weight is [in, out]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Language(nn.Module):
    """A causal language model as transformers has them: a tied head, on every token."""

    def __init__(self, width: int = 8, vocabulary: int = 32) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.mix, self.lm_head = nn.Linear(width, width), nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor, use_cache: bool = True) -> Answer:
        assert not use_cache
        so_far = (self.wte(input_ids) * attention_mask[..., None]).cumsum(1)
        return Answer(self.lm_head(self.mix(so_far).tanh()))

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, layer: nn.Module) -> None:
        self.lm_head = layer


def random(model: nn.Module) -> nn.Module:
    """Return the model with other weights in all adapters, as after training."""
    generator = torch.Generator().manual_seed(3)
    for layer in (layer for layer in model.modules() if isinstance(layer, LowRank)):
        layer.up.weight.data.copy_(torch.randn(layer.up.weight.shape, generator=generator) / 3)
    return model


@pytest.mark.parametrize("layer", [nn.Linear(5, 3), Conv1D()])
def test_an_adapted_layer_is_the_dense_layer_of_the_changed_weight(layer: nn.Module) -> None:
    x, model = torch.randn(4, 5), nn.Sequential(layer, nn.Linear(3, 2))
    adapted = lora(model, rank=RANK, alpha=ALPHA)
    torch.testing.assert_close(adapted(x), model(x))  # the same outputs at first
    (low,) = [layer for layer in random(adapted).modules() if isinstance(layer, LowRank)]
    weight = layer.weight.T if isinstance(layer, Conv1D) else layer.weight
    change = low.up.weight @ low.down.weight
    torch.testing.assert_close(low(x), F.linear(x, weight + ALPHA / RANK * change, layer.bias))
    assert (low(x) - F.linear(x, weight + ALPHA * change, layer.bias)).abs().max() > 0.1  # without the rank
    effective = low.weight.T if isinstance(layer, Conv1D) else low.weight
    torch.testing.assert_close(effective, weight + ALPHA / RANK * change)
    assert all(w.requires_grad for w in model.parameters()) and low.base.weight.data_ptr() == layer.weight.data_ptr()


def test_the_laplace_posterior_of_each_adapter_is_the_inverse_of_its_dense_gauss_newton_matrix() -> None:
    """For one row K-FAC is exact; the dense Jacobian is by the effective weights, in float64."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model, x, y = random(lora(base, rank=RANK, alpha=ALPHA)), torch.randn(1, 4), torch.tensor([1])
    config = {"prior_precision": 2.0, "draws": 2, "temperature": 1.0}
    inner = bayesianise(model, "kfac_laplace", [(x, y)], config=config).inner
    assert isinstance(inner, LinearisedLaplace) and len(inner.layers) == 3  # A, B and the head
    low, head = model[0], model[2]

    def outputs(a: Tensor, b: Tensor, scale: float = ALPHA / RANK) -> Tensor:
        hidden = F.linear(x.double(), low.base.weight.double() + scale * b @ a, low.base.bias.double()).tanh()
        return F.linear(hidden, head.weight.double(), head.bias.double())[0]

    a, b = low.down.weight.detach().double(), low.up.weight.detach().double()
    p = outputs(a, b).softmax(-1).detach()
    for name, place in (("down", 0), ("up", 1)):
        (layer,) = [layer for key, layer in inner.layers.items() if key.endswith(f".{name}")]
        root = torch.kron(layer.output_vectors, layer.input_vectors).double() * layer.scale.double().flatten()
        for scale, near in ((ALPHA / RANK, True), (1.0, False)):
            of_scale = partial(outputs, scale=scale)
            jacobian = torch.autograd.functional.jacobian(of_scale, (a, b))[place].flatten(1)
            matrix = jacobian.T @ (p.diag() - p[:, None] * p) @ jacobian + 2 * torch.eye(jacobian.shape[1]).double()
            assert torch.allclose(root @ root.T, torch.linalg.inv(matrix), rtol=1e-4, atol=1e-6) == near


@pytest.mark.parametrize(("config", "temperature"), [({}, 0.1), ({"layers": "last"}, 1.0), ({"temperature": 0.5}, 0.5)])
def test_the_temperature_is_colder_over_all_adapters_alone(config: dict[str, Any], temperature: float) -> None:
    model = lora(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), rank=RANK)
    rows = [(torch.ones(3, 4), torch.arange(3))]
    assert bayesianise(model, "kfac_laplace", rows, config=config).about.config["temperature"] == temperature


@pytest.mark.slow
@pytest.mark.parametrize("method", ["kfac_laplace", "swag", "ffg_u"])
@pytest.mark.parametrize("kind", ["classes", "next token"])
def test_a_method_fits_adapters_and_leaves_all_other_weights_as_they_are(method: str, kind: str) -> None:
    torch.manual_seed(0)
    whole: nn.Module = Text() if kind == "classes" else NextToken(Language(), [1, 2, 3])
    model = lora(whole, rank=RANK)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    config = {"draws": 3}
    epochs = 30 if method == "ffg_u" else 8  # inducing weights start afresh
    posterior = bayesianise(model, method, text_loader(100), epochs=epochs, lr=2e-2, config=config)
    inputs, labels = texts(100)
    score = posterior.predict(inputs).log_prob(labels).mean()
    assert score > bayesianise(model, "deterministic", text_loader(100)).predict(inputs).log_prob(labels).mean() + 0.02
    drawn = [name for name in posterior.inner.state().tensors if "base" in name or "wte" in name or "tokens" in name]
    assert not drawn and any("down" in name for name in posterior.inner.state().tensors)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    heads = posterior.inner.state().tensors.get("head.weight")
    if kind == "next token" and heads is not None:
        assert bool((heads == heads[:1]).all())  # the frozen head
    assert posterior.notes == ()


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_next_token_is_that_after_the_last_place_of_the_mask(side: str) -> None:
    torch.manual_seed(0)
    language, (inputs, _) = Language(), texts(20)
    lengths = inputs["attention_mask"].sum(1)
    whole = language(**inputs, use_cache=False).logits
    meant = torch.stack([row[int(length) - 1] for row, length in zip(whole, lengths, strict=True)])
    if side == "left":
        shifts = [8 - int(length) for length in lengths]
        inputs = {n: torch.stack([r.roll(k) for r, k in zip(v, shifts, strict=True)]) for n, v in inputs.items()}
    torch.testing.assert_close(NextToken(language)(**inputs), meant)
    torch.testing.assert_close(NextToken(language, [4, 2])(**inputs), meant[:, [4, 2]])
    assert language.lm_head.weight is language.wte.weight  # the user's model is as it was


def test_what_has_no_adapters_is_refused() -> None:
    for options, rule in (({"layers": "none"}, "layers must be patterns"), ({"rank": 0}, "rank must be a whole")):
        with pytest.raises(UserError, match=rule):
            lora(Text(CLASSES), **dict[str, Any](options))
    with pytest.raises(UserError, match="must be a causal language model of transformers, got Text"):
        NextToken(Text())

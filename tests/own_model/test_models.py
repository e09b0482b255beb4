"""Methods on a residual network, a vision transformer and a text transformer; the note about short chains."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bdl_pipe
from bdl_pipe import ModulePosterior, UserError, bayesianise
from bdl_pipe.predictive import Categorical

from .models import CLASSES, ResNet, Text, ViT, image_loader, images, text_loader, texts, trained

KFAC = {"prior_precision": 1.0, "draws": 200}


def of_tensors(inputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply ``change`` to the tensors of inputs, which are one tensor or a dictionary of tensors."""
    return {name: change(values) for name, values in inputs.items()} if isinstance(inputs, dict) else change(inputs)


def outputs_of(model: nn.Module, inputs: Any) -> Tensor:
    with torch.no_grad():
        answer = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return answer if isinstance(answer, Tensor) else answer.logits


@dataclass(frozen=True)
class Case:
    """A trained model, its loader, and rows that it has not seen."""

    model: nn.Module
    loader: Callable[..., Any]
    inputs: Any
    labels: Tensor

    def log_probs(self) -> Tensor:
        return outputs_of(self.model, self.inputs).log_softmax(-1)


SOAK = (pytest.param(kind, marks=pytest.mark.soak, id=name) for kind, name in ((ViT, "vit"), (Text, "text")))


@pytest.fixture(scope="module", params=[pytest.param(ResNet, id="resnet"), *SOAK])
def case(request: pytest.FixtureRequest) -> Case:
    torch.manual_seed(0)
    loader, rows = (text_loader, texts) if request.param is Text else (image_loader, images)
    return Case(trained(request.param(), loader(), 6), loader, *rows(400, seed=1))


def fitted(case: Case, method: str, **options: Any) -> ModulePosterior:
    return bayesianise(case.model, method, case.loader(), **options)


def predicted(posterior: ModulePosterior, inputs: Any) -> Categorical:
    predictive = posterior.predict(inputs)
    assert isinstance(predictive, Categorical)
    return predictive


@pytest.mark.slow
def test_the_point_estimate_has_the_predictions_of_the_users_model(case: Case) -> None:
    posterior = fitted(case, "deterministic")
    assert isinstance(posterior, bdl_pipe.Posterior)
    torch.testing.assert_close(predicted(posterior, case.inputs).log_probs, case.log_probs(), rtol=1e-4, atol=1e-5)


METHODS = {"kfac_laplace": {}, "g_vbll": {"epochs": 20}}
METHODS |= {name: {"epochs": 2} for name in ("swag", "ciber", "d_vbll", "ffg_u", "ffg_w")}
ONE_DRAW = ("d_vbll", "g_vbll")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_predictions_are_normalised_and_beat_chance_and_their_draws_differ(case: Case, method: str) -> None:
    posterior = fitted(case, method, **METHODS[method])
    predictive = predicted(posterior, case.inputs)
    assert predictive.mean.shape == (400, CLASSES)
    torch.testing.assert_close(predictive.mean.sum(1), torch.ones(400), rtol=0, atol=1e-4)
    nll = -float(predictive.log_prob(case.labels).mean())
    assert nll < np.log(CLASSES)  # better than chance on 400 rows that it has not seen
    if method not in ONE_DRAW:
        assert float(predictive.draw_log_probs.exp().std(0).mean()) > 1e-5
    if method == "swag":  # a second fit has the same bits, in spite of dropout and shuffling
        again = fitted(case, method, **METHODS[method])
        assert torch.equal(predicted(again, case.inputs).draw_log_probs, predictive.draw_log_probs)


@pytest.mark.slow
def test_chains_start_at_the_model_without_dropout_and_batch_norm_is_refused(case: Case) -> None:
    if isinstance(case.model, ResNet):
        with pytest.raises(UserError, match=r"sgmcmc does not support batch norm.* bn1: replace it by GroupNorm"):
            fitted(case, "sgmcmc", epochs=1)
        return
    posterior = fitted(case, "sgmcmc", epochs=2, chains=1, config={"sampler": {"step_size": {"rate": 1e-12}}})
    # steps of almost no length: every draw is the model itself, without its dropout
    meant = case.log_probs()
    draws = predicted(posterior, case.inputs).draw_log_probs
    torch.testing.assert_close(draws, meant.expand_as(draws), rtol=1e-2, atol=1e-2)
    moving = predicted(fitted(case, "sgmcmc", epochs=2, chains=1), case.inputs).draw_log_probs
    assert float((moving - meant).abs().mean()) > 0.02


@pytest.mark.slow
def test_a_student_is_closer_to_its_teacher_than_the_first_model_is(case: Case) -> None:
    teacher = fitted(case, "kfac_laplace", config={"temperature": 4.0})
    student = fitted(case, "dark_knowledge", epochs=10, teacher=teacher)
    wanted = predicted(teacher, case.inputs).mean
    means, start = predicted(student, case.inputs).mean, case.log_probs().exp()
    assert float((means - wanted).abs().mean()) < float((start - wanted).abs().mean())


def dense(case: Case) -> tuple[Tensor, Tensor]:
    """Return the head's weights with its bias as a vector, and the curvature G ⊗ A of the training rows, in float64."""
    head = case.model.get_submodule({ResNet: "fc", ViT: "head", Text: "score"}[type(case.model)])
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    rows = texts(300) if isinstance(case.model, Text) else images(300)
    outputs_of(case.model, rows[0])
    hook.remove()
    features = seen[0].double()
    if isinstance(rows[0], dict):  # the head is called on every token, and the output of one token is taken
        features = features[torch.arange(300), rows[0]["attention_mask"].sum(1) - 1]
    features = torch.cat([features, torch.ones(300, 1, dtype=torch.float64)], 1)
    bias = torch.zeros(CLASSES) if head.bias is None else head.bias
    weights = torch.cat([head.weight, bias[:, None]], 1).detach().double()
    probs = (features @ weights.T).softmax(-1)
    fisher = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
    curvature = torch.kron(fisher.sum(0), features.T @ features) / 300
    return weights.flatten(), curvature


@pytest.mark.slow
def test_draws_of_the_last_layer_have_the_covariance_of_dense_algebra(case: Case) -> None:
    """Σ_s (w_s − w)ᵀ P (w_s − w) is χ² of as many degrees as there are numbers drawn; 5 deviations: once in 2e6."""
    posterior = fitted(case, "kfac_laplace", config=KFAC)
    tensors = posterior.inner.state().tensors
    assert sorted(name for name in tensors if not name.startswith("trunk.module.")) == ["head.bias", "head.weight"]
    drawn = torch.cat([tensors["head.weight"], tensors["head.bias"][..., None]], -1).flatten(1).double()
    mean, curvature = dense(case)
    eye = torch.eye(len(mean), dtype=torch.float64)

    def deviations(precision: Tensor) -> float:
        away, count = drawn - mean, drawn.numel()
        return float(((away @ precision) * away).sum() - count) / np.sqrt(2 * count)

    assert abs(deviations(curvature + eye)) < 5
    assert abs(deviations(curvature + 2 * eye)) > 5  # the wrong prior precision
    assert abs(deviations(1.3 * curvature + eye)) > 5  # the wrong number of rows
    assert sum(v.numel() for v in tensors.values()) < drawn.numel() + 200 * 200  # no copy of the trunk for each draw


@pytest.mark.slow
def test_a_fit_changes_neither_the_model_nor_the_global_generators(case: Case) -> None:
    model = case.model.train()
    loader = case.loader()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    modes = [layer.training for layer in model.modules()]
    bayesianise(model, "swag", loader, epochs=1)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert [layer.training for layer in model.modules()] == modes
    assert all(weight.requires_grad for weight in model.parameters())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())
    model.eval()


@pytest.mark.slow
def test_the_joint_of_grouped_inputs_shares_its_draws(case: Case) -> None:
    posterior = fitted(case, "kfac_laplace")
    grouped = of_tensors(case.inputs, lambda values: values[:6].unflatten(0, (3, 2)))
    few = of_tensors(case.inputs, lambda values: values[:6])
    labels = case.labels[:6].reshape(3, 2)
    each = predicted(posterior, few).draw_log_probs.unflatten(1, (3, 2))
    chosen = each.gather(-1, labels.expand(len(each), 3, 2)[..., None])[..., 0].sum(-1)
    meant = torch.logsumexp(chosen, 0) - np.log(len(each))
    joint = posterior.joint(grouped).log_prob(labels)
    torch.testing.assert_close(joint, meant, check_dtype=False, rtol=1e-5, atol=1e-5)


def notes(lr: float) -> tuple[str, ...]:
    """The notes about chains of a logistic regression, whose posterior has one mode."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator)
    y = (x[:, 0] + torch.randn(60, generator=generator) > 0).long()
    torch.manual_seed(0)
    logistic = nn.Sequential(nn.Identity(), nn.Linear(2, 2))
    return bayesianise(logistic, "sgmcmc", DataLoader(TensorDataset(x, y), 60), epochs=300, lr=lr).notes


@pytest.mark.slow
def test_chains_that_mix_have_no_note_and_chains_that_hardly_move_have_one() -> None:
    pytest.importorskip("arviz")
    assert notes(0.1) == ()
    (note,) = notes(1e-4)
    assert note.startswith("chains ") and note.endswith("run them longer")

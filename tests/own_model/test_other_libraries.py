"""Models of transformers and timm with random weights, where these packages are installed."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bdl_pipe
from bdl_pipe import NextToken, bayesianise, lora

from .models import text_loader, texts

PAGE = Path(__file__).parents[2] / "docs/your-own-model.md"
METHODS: dict[str, dict[str, Any]] = {"deterministic": {}, "kfac_laplace": {}}
METHODS |= {method: {"epochs": 1} for method in ("swag", "d_vbll", "ffg_u", "ffg_w")}
SIZE = {"vocab_size": 32, "num_labels": 3}
WIDTHS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def bert(package: Any) -> nn.Module:
    config = package.BertConfig(max_position_embeddings=16, **WIDTHS, **SIZE)
    return package.BertForSequenceClassification(config)


def distilbert(package: Any) -> nn.Module:
    config = package.DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=16, **SIZE)
    return package.DistilBertForSequenceClassification(config)


def gpt2(package: Any) -> nn.Module:
    """A model whose head is called on every token; the output of a row's last token is taken."""
    config = package.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=16, pad_token_id=0, **SIZE)
    return package.GPT2ForSequenceClassification(config)


def image_rows() -> tuple[Tensor, Tensor, Any]:
    """Return images, their labels and a loader of both."""
    images, labels = torch.randn(16, 3, 32, 32), torch.arange(16) % 3
    return images, labels, DataLoader(TensorDataset(images, labels), 8)


def check(model: nn.Module, method: str, loader: Any, inputs: Any, labels: Tensor, logits: Any) -> None:
    """Check that the predictions are finite and, of the point estimate, those of the model."""
    predictive = bayesianise(model, method, loader, **METHODS[method]).predict(inputs)
    assert torch.isfinite(predictive.log_prob(labels)).all()
    if method == "deterministic":
        with torch.no_grad():
            torch.testing.assert_close(predictive.mean, logits().softmax(-1), rtol=1e-4, atol=1e-5)


def run(block: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the block of the page that has ``block`` in it, with ``names`` known."""
    (text,) = [text for text in re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.M | re.S) if block in text]
    exec(compile(text, str(PAGE), "exec"), names)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("make", [bert, distilbert, gpt2])
@pytest.mark.parametrize("method", METHODS)
def test_a_model_of_transformers_has_finite_predictions_by_each_method(make: Any, method: str) -> None:
    package = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = make(package).eval()
    inputs, labels = texts(60)
    check(model, method, text_loader(60, batch=20), inputs, labels, lambda: model(**inputs).logits)


@pytest.mark.slow
def test_the_example_of_transformers_in_the_documentation_runs(tmp_path: Path) -> None:
    package = pytest.importorskip("transformers")
    torch.manual_seed(0)
    bert(package).save_pretrained(tmp_path)
    variables = {"folder": tmp_path, "loader": text_loader(60, batch=20), **texts(60)[0]}
    names = run("AutoModelForSequenceClassification", variables)
    assert isinstance(names["posterior"], bdl_pipe.ModulePosterior)
    gpt2 = package.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=16, pad_token_id=0, vocab_size=32)
    package.GPT2LMHeadModel(gpt2).save_pretrained(tmp_path / "language")
    names = run("AutoModelForCausalLM", {**variables, "folder": tmp_path / "language"})
    assert names["posterior"].about.config["layers"] == "all"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["deterministic", "kfac_laplace", "swag", "ffg_u"])
@pytest.mark.parametrize("kind", ["classes", "answers", "vocabulary", "peft"])
def test_adapters_of_a_model_of_transformers_have_finite_predictions(kind: str, method: str) -> None:
    package = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = package.LlamaConfig(max_position_embeddings=16, num_key_value_heads=1, vocab_size=32, **WIDTHS)
    classes = kind in ("classes", "peft")
    model: nn.Module = bert(package) if classes else package.LlamaForCausalLM(config)
    inputs, labels = texts(60)
    whole = model.eval() if classes else NextToken(model.eval(), [4, 5, 6] if kind == "answers" else None)
    if kind == "peft":
        peft = pytest.importorskip("peft")
        adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2)).eval()
    else:
        adapted = lora(whole, rank=2)

    def logits() -> Tensor:
        if classes:
            return model(**inputs).logits
        last = inputs["attention_mask"].sum(1) - 1
        each = model(**inputs).logits[torch.arange(60), last]
        return each[:, [4, 5, 6]] if kind == "answers" else each

    check(adapted, method, text_loader(60, batch=20), inputs, labels, logits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet10t", {}),
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 16, "depth": 1, "embed_dim": 32, "num_heads": 2}),
        ("convnext_atto", {}),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_a_model_of_timm_has_finite_predictions_by_each_method(name: str, options: dict[str, Any], method: str) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=3, **options).eval()
    images, labels, loader = image_rows()
    check(model, method, loader, images, labels, lambda: model(images))


@pytest.mark.slow
def test_the_example_of_timm_in_the_documentation_runs(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    torch.save(timm.create_model("resnet10t", num_classes=3).state_dict(), tmp_path / "weights.pth")
    images, _, loader = image_rows()
    names = run("timm.create_model", {"weights": tmp_path / "weights.pth", "loader": loader, "images": images})
    assert isinstance(names["posterior"], bdl_pipe.ModulePosterior)

"""Programs of a user's posterior, and its model in MLflow, equal the posterior; padding changes no prediction."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bdl_pipe import ModulePosterior, UserError, bayesianise

from .models import Text, texts

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = 50 + 5 * X[:, :1] + torch.sin(3 * X[:, 1:2])


class Bag(nn.Module):
    """The mean of the tokens that the mask shows, and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.up, self.fc = nn.Embedding(32, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[..., None]
        return self.fc(self.up((self.tokens(input_ids) * mask).sum(1) / mask.sum(1)).tanh())


def regression() -> ModulePosterior:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    config = {"draws": 2}
    posterior = bayesianise(model, "swag", [(X[:40], Y[:40])], epochs=4, config=config, calibration_loader=[(X, Y)])
    assert posterior.recalibration is not None and posterior.recalibration.factor != 1
    return posterior


@pytest.mark.slow
def test_a_program_predicts_like_the_posterior_on_other_rows_in_own_units_after_recalibration(tmp_path: Path) -> None:
    posterior = regression()
    assert posterior.export(tmp_path / "m.onnx") <= 1e-5 and posterior.export(tmp_path / "m.pt2") <= 1e-5
    mean, variance = torch.export.load(tmp_path / "m.pt2").module()(X[40:])
    predictive = posterior.predict(X[40:])
    torch.testing.assert_close(mean, predictive.mean, rtol=1e-5, atol=0, check_dtype=False)
    torch.testing.assert_close(variance, predictive.variance, rtol=1e-4, atol=0, check_dtype=False)
    plain = ModulePosterior(posterior.inner, posterior.transform, posterior.about, posterior.trunk)
    assert (plain.predict(X[40:]).variance / variance - 1).abs().min() > 1e-3  # the wrong variant
    with pytest.raises(UserError, match="a loaded posterior needs inputs"):
        plain.export(tmp_path / "n.pt2")
    with pytest.raises(UserError, match=r"must end in .pt2 .* got m.pth"):
        posterior.export(tmp_path / "m.pth")


class Squeezed(nn.Module):
    """A mean [row] of two inputs, one of which is named like the operation that joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.up, self.fc = nn.Embedding(5, 3), nn.Linear(7, 8), nn.Linear(8, 1)

    def forward(self, num: Tensor, cat: Tensor) -> Tensor:
        return self.fc(self.up(torch.cat([num, self.kinds(cat)], 1)).tanh()).squeeze(-1)


@pytest.mark.slow
def test_a_squeeze_after_the_head_and_an_input_named_like_an_operation_export_to_onnx(tmp_path: Path) -> None:
    """Onnxruntime refused both: features of eight columns cannot be squeezed, and the name was there twice."""
    torch.manual_seed(1)
    batch = {"num": X, "cat": torch.arange(60) % 5, "labels": Y[:, 0]}
    assert bayesianise(Squeezed(), "kfac_laplace", [batch]).export(tmp_path / "m.onnx") <= 1e-5


@pytest.mark.soak
def test_mlflow_serves_a_posterior_of_named_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None, raising=False)
    torch.manual_seed(0)
    inputs, labels = texts(40)
    posterior = bayesianise(Bag(), "kfac_laplace", [{**inputs, "labels": labels}])
    mlflow.create_experiment("own", artifact_location=(tmp_path / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=mlflow.get_experiment_by_name("own").experiment_id):
        info = posterior.log_model("mine")
    served = mlflow.pyfunc.load_model(info.model_uri)
    answer = served.predict({name: values.numpy() for name, values in inputs.items()})
    mean = posterior.predict(inputs).mean.numpy()
    np.testing.assert_allclose(answer[["p_0", "p_1", "p_2"]].to_numpy(), mean, rtol=1e-5, atol=1e-7)
    assert (answer["predicted"] == mean.argmax(1)).all()
    assert not [one for one in recwarn if "hint" in str(one.message)]  # MLflow's advice to who wrote the script


def test_a_served_program_refuses_a_number_that_is_not_finite() -> None:
    """The answer to a null in a request was a mean of NaN."""
    exceptions = pytest.importorskip("mlflow.exceptions")
    from bdl_pipe.own_model.served import Served

    served = Served()
    served.program, served.parts = (lambda inputs: (inputs,)), {"": "float32"}
    assert len(served.predict(None, np.array([[1.0, 2.0]]))) == 1
    with pytest.raises(exceptions.MlflowException, match="inputs: must be finite"):
        served.predict(None, np.array([[1.0, np.nan]]))


def batches(side: str | None) -> list[dict[str, Tensor]]:
    """Return batches of sentences, each padded to its longest sentence on a side; None: all to eight tokens."""
    inputs, labels = texts(60)
    lengths, found = inputs["attention_mask"].sum(1), []
    for rows in lengths.argsort().split(15):
        longest = 8 if side is None else int(lengths[rows].max())
        named = {name: values[rows][:, :longest] for name, values in inputs.items()}
        if side == "left":
            named = {
                n: torch.stack([row.roll(longest - int(k)) for row, k in zip(v, lengths[rows], strict=True)])
                for n, v in named.items()
            }
        found.append({**named, "labels": labels[rows]})
    return found


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_that_are_padded_to_lengths_of_their_own_give_the_posterior_of_one_length(side: str) -> None:
    """The model ignores what the mask hides, so that only the rows' sums in another order differ."""
    torch.manual_seed(0)
    model: nn.Module = Bag() if side == "left" else Text()
    own, one = (bayesianise(model, "kfac_laplace", batches(kind)) for kind in (side, None))
    inputs: Any = {name: values for name, values in batches(side)[0].items() if name != "labels"}
    whole: Any = {name: values for name, values in batches(None)[0].items() if name != "labels"}
    assert inputs["input_ids"].shape[1] < 8 == own.about.layout.parts[1].shape[0]
    torch.testing.assert_close(own.predict(inputs).mean, one.predict(whole).mean)
    torch.testing.assert_close(own.predict(whole).mean, one.predict(whole).mean)


def test_padding_repeats_the_loaders_token_and_otherwise_takes_the_models() -> None:
    """The model notes each token that it sees; its own token for padding is 9."""
    seen = set[int]()

    class Looks(Bag):
        config = type("Config", (), {"pad_token_id": 9})

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            seen.update(input_ids[attention_mask == 0].tolist())
            return super().forward(input_ids, attention_mask)

    for token, shown in ((7, {7}), (None, {9})):
        short = {"input_ids": torch.ones(4, 3).long(), "attention_mask": torch.ones(4, 3).long()}
        if token is not None:
            short["input_ids"][0, 2], short["attention_mask"][0, 2] = token, 0
        long = {"input_ids": torch.ones(4, 5).long(), "attention_mask": torch.ones(4, 5).long()}
        seen.clear()
        bayesianise(
            Looks(), "deterministic", [{**rows, "labels": torch.tensor([0, 1, 2, 0])} for rows in (short, long)]
        )
        assert seen == shown

"""The student: it learns the coreset, survives a round trip, and does not keep V."""

import pytest
import torch

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.protocols.closed_form import CORESET_BMA, TrunkMixture
from bdl_pipe.coresets.shared.init import Coreset, balanced
from bdl_pipe.coresets.vbpc import method
from bdl_pipe.coresets.vbpc.posterior import VbpcPosterior, fit_student
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed

from .cases import tiny_data, tiny_vbpc
from .test_distil import distil_coreset

DATA = tiny_data()
SETTINGS = config.read(method.VbpcConfig, tiny_vbpc(), "methods.vbpc")


@pytest.fixture(scope="module")
def coreset() -> dict[str, list]:
    return {"coreset": [distil_coreset(DATA, {}, SETTINGS, rng=Seed(0), report=Silent())]}


@pytest.mark.parametrize(("ipc", "square"), [(2, 6), (12, 32)])
def test_the_head_keeps_what_a_prediction_reads(ipc: int, square: int) -> None:
    """3·ipc rows of 32 features: no square of the larger number; with more rows than features, Φ is in the factor."""
    settings = config.read(method.VbpcConfig, config.merge(tiny_vbpc(), {"ipc": ipc}), "methods.vbpc")
    chosen = balanced(DATA, ipc, 1.0, rng=Seed(0)).state(DATA, {})
    state = fit_student(DATA, {"coreset": [chosen]}, settings, rng=Seed(1), report=Silent())
    stored = {k.removeprefix("head."): tuple(v.shape) for k, v in state.tensors.items() if k.startswith("head.")}
    shapes = {"mean": (32, 3), "factor": (square, square)} | ({"features": (6, 32)} if ipc == 2 else {})
    assert stored == shapes
    inputs, _ = DATA.tensors("validation")
    again = VbpcPosterior.from_state(state)
    phi = again.features(inputs)
    with torch.no_grad():
        expected = settings.head.solve(again._network, Coreset.from_state(chosen).images, chosen.tensors["labels"])
    torch.testing.assert_close(again.predict(inputs).log_probs, expected.predict(phi).log_probs)


def test_one_row_alone_is_predicted_as_in_a_batch(coreset: dict[str, list]) -> None:
    fitted = VbpcPosterior.from_state(fit_student(DATA, coreset, SETTINGS, rng=Seed(1), report=Silent()))
    inputs, _ = DATA.tensors("validation")
    alone = torch.cat([fitted.predict(row[None]).log_probs for row in inputs[:5]])
    torch.testing.assert_close(alone, fitted.predict(inputs).log_probs[:5], rtol=1e-4, atol=1e-5)


def test_a_distilled_coreset_teaches(coreset: dict[str, list]) -> None:
    """Classes differ by 50 grey levels under a noise of 0–120: the fit must beat 1/3 by far."""
    base = tiny_vbpc()
    longer = config.merge(base, {"coreset": {"steps": 150}, "network": {"norm": "none"}})
    longer["coreset"]["augmentation"] = longer["student"]["augmentation"] = {"choose": "all", "operations": {}}
    settings = config.read(method.VbpcConfig, longer, "methods.vbpc")
    made = {"coreset": [distil_coreset(DATA, {}, settings, rng=Seed(0), report=Silent())]}
    fitted = VbpcPosterior.from_state(fit_student(DATA, made, settings, rng=Seed(1), report=Silent()))
    inputs, targets = DATA.tensors("validation")
    assert float((fitted.predict(inputs).mean.argmax(1) == targets).float().mean()) > 0.8


def mixture(coreset: dict[str, list], trunks: int) -> State:
    section = {name: tiny_vbpc()[name] for name in ("network", "rho", "gamma", "feature_scale", "student")}
    settings = config.read(CORESET_BMA.config, section | {"trunks": trunks}, "methods.coreset_bma")
    fit = CORESET_BMA.stages["student"].fit_one
    return fit(DATA, coreset, settings, rng=Seed(1), report=Silent())


def test_the_mixture_of_trunks_is_the_mean_of_their_predictives(coreset: dict[str, list]) -> None:
    inputs, _ = DATA.tensors("validation")
    fitted = TrunkMixture.from_state(mixture(coreset, 3))
    alone = [
        VbpcPosterior.from_state(
            fit_student(DATA, coreset, SETTINGS, rng=Seed(1).fold("trunk", k), report=Silent())
        ).predict(inputs)
        for k in range(3)
    ]
    found = fitted.predict(inputs)
    torch.testing.assert_close(found.mean, torch.stack([one.mean for one in alone]).mean(0))
    assert float(found.mutual_information().min()) > 0
    assert not torch.allclose(alone[0].mean, alone[1].mean)

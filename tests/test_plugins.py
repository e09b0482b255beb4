"""Plugins: their additions, their refusals, and that a failed plugin leaves nothing."""

import math
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bdl_pipe import evaluation, metrics, plugins
from bdl_pipe.config import read, to_mapping
from bdl_pipe.data import sources
from bdl_pipe.plugins import load
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.registry import METHODS, Lazy
from bdl_pipe.seeds import Seed
from tests import fresh
from tests.case_files import sections_of
from tests.preparing import dataset_of
from tests.refusals import refusal, refused
from tests.test_docs import plugin_files

FILES = sections_of(__file__)
METHOD, SOURCE = FILES["method"], FILES["source"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, forgotten_plugins: None) -> Path:
    """A working directory for plugins."""
    return tmp_path


def write(path: str, text: str) -> str:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(text)
    return path


def test_a_file_adds_a_method() -> None:
    load([write("plugins/small.py", METHOD.replace("NAME", "small"))])
    assert list(METHODS)[-1] == "small" and len(METHODS) == len(list(METHODS))
    method = METHODS["small"]
    assert read(method.config, {"size": 3}, "methods.small") == method.config(3)
    assert isinstance(METHODS, Lazy) and METHODS.module("small") == plugins.module_name("plugins/small.py")
    assert "bdl_pipe" not in METHODS.module("small")
    load(["plugins/small.py"])  # a second load changes nothing
    assert list(METHODS).count("small") == 1


def test_a_plugin_with_a_taken_name_is_refused_and_adds_no_method() -> None:
    before = list(METHODS)
    write("a.py", METHOD.replace("NAME", "first") + METHOD.replace("NAME", "sgd"))
    taken = "a.py cannot be imported: the method sgd is taken: the library"
    assert refusal(load, ["a.py"]).startswith(f"PluginError: the plugin {taken}")
    assert list(METHODS) == before and plugins.loaded() == () and plugins.module_name("a.py") not in sys.modules
    load([write("b.py", METHOD.replace("NAME", "first"))])
    message = refusal(load, [write("c.py", METHOD.replace("NAME", "first"))])
    assert message.endswith("the method first is taken: b.py has one of this name (line 11)") and "c.py" in message
    assert METHODS.module("first") == plugins.module_name("b.py")


def test_a_failed_import_is_one_line_with_the_file_and_the_line_number() -> None:
    causes = {
        "x = 1\nimport not_there_at_all": "ModuleNotFoundError: No module named 'not_there_at_all' (line 2)",
        "x = 1\n\nx / 0": "ZeroDivisionError: division by zero (line 3)",
        "x = (": "SyntaxError in line 1: '(' was never closed",
        "raise SystemExit('no')": "SystemExit: no (line 1)",
        "raise ValueError('two\\nlines')": "ValueError: two lines (line 1)",
    }
    messages = {text: refusal(load, [write("bad.py", text)]) for text in causes}
    head = "PluginError: the plugin bad.py cannot be imported"
    assert messages == {text: f"{head}: {cause}" for text, cause in causes.items()}


def test_an_interrupt_passes_through_and_loads_no_plugin() -> None:
    with pytest.raises(KeyboardInterrupt):
        load([write("stop.py", "raise KeyboardInterrupt")])
    assert plugins.loaded() == ()


def test_repeated_and_missing_plugins_and_no_lists_of_them_are_refused() -> None:
    rows: list[tuple[object, str]] = [
        *((names, "plugins must be a list of Python files") for names in ("a.py", [1], {"a": 1}, [""], 3)),
        (["a.py", "a.py"], "must not name a plugin twice"),
        (["my/gone.py"], "the plugin my/gone.py is missing: no such file in "),
        (["nowhere_to_be_found"], "nowhere_to_be_found cannot be imported: there is no such module"),
    ]
    assert [names for names, message in rows if message not in refusal(load, names)] == []


def test_an_installed_module_and_an_entry_point_are_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("my_methods/__init__.py", "")
    write("my_methods/one.py", METHOD.replace("NAME", "one"))
    write("my_methods/two.py", METHOD.replace("NAME", "two"))
    write("my_methods-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: my-methods\nVersion: 1\n")
    write("my_methods-1.dist-info/entry_points.txt", "[bdl_pipe.plugins]\nshort = my_methods.two\n")
    monkeypatch.syspath_prepend(folder)
    load(["my_methods.one", "short"])
    assert METHODS.module("one") == "my_methods.one" and METHODS.module("two") == "my_methods.two"
    assert [plugin.module for plugin in plugins.loaded()] == ["my_methods.one", "my_methods.two"]


@pytest.mark.process
def test_wrong_registrations_are_refused(folder: Path) -> None:
    """In a process of its own, where the tests' type checker does not refuse them first."""
    lines, causes = zip(*refused("plugins"), strict=True)
    names = [write(f"p{number}.py", FILES["head"] + line) for number, line in enumerate(lines)]
    errors = fresh.run(folder, FILES["load_each"], *names).splitlines()
    assert errors == [f"the plugin {n} cannot be imported: {c} (line 13)" for n, c in zip(names, causes, strict=True)]


def test_a_registered_network_is_chosen_by_its_name() -> None:
    message = refusal(read, NetworkSpec, spec("wave"), "spec")
    start = "ConfigError: spec.network.name must be one of mlp, convnet, "
    assert message.startswith(start) and "python" in message and message.endswith("got 'wave'")
    load([write("wave.py", plugin_files()["plugins/wave.py"])])
    network = read(NetworkSpec, spec("wave"), "spec")
    assert to_mapping(network)["network"] == {"name": "wave", "width": 5}
    first, again = network.build(Seed(1)), network.build(Seed(1))
    assert first.width == 5 and first.head.weight.shape == (2, 5)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    x = torch.randn(4, 3)
    torch.testing.assert_close(first.trunk(x), (x @ first.trunk[1].weight.T).sin())
    assert refusal(read, NetworkSpec, spec("nave"), "spec").endswith("got 'nave'")


def spec(name: str) -> dict[str, object]:
    network = {"name": name, "width": 5}
    return {"network": network, "input_shape": [3], "outputs": 2, "likelihood": "categorical"}


def test_a_registered_source_is_read_loaded_and_checked() -> None:
    load([write("blobs.py", SOURCE.replace("TASK", '"classification"'))])
    blobs = {"name": "blobs", "rows": 20}
    source = dataset_of(blobs)
    assert source.task == "classification" and source.source.kind == "table"
    raw = sources.load(source.source)
    assert raw.classes == ("a", "b") and raw.train.inputs.shape == (20, 2)
    message = refusal(dataset_of, {"name": "blobs", "rows": "x"})
    assert "datasets.d.source.rows must be a whole number, got 'x'" in message
    assert "blobs: must have at least 10 rows, got 4" in refusal(sources.load, dataset_of(blobs | {"rows": 4}).source)


def test_a_source_that_loads_another_task_than_registered_is_refused() -> None:
    load([write("blobs.py", SOURCE.replace("TASK", '"regression"'))])
    message = refusal(sources.load, dataset_of({"name": "blobs", "rows": 20}).source)
    assert "blobs was registered with task classification, got regression" in message


def test_a_registered_ood_score_is_computed_and_checked_for_every_predictive() -> None:
    text = "import bdl_pipe\nbdl_pipe.register_ood_score('top', lambda p: getattr(p, 'log_probs', [0])[0])"
    load([write("s.py", text)])
    numbers = Gaussian(torch.zeros(1, 3, 2), torch.ones(1, 3, 2))
    for predictive, message in (
        (numbers, "top must be a tensor of shape (3,), got int"),
        (
            Categorical(torch.rand(1, 3, 2).log_softmax(-1)),
            "the OOD score top must be a tensor of shape (3,), got (2,)",
        ),
        (
            Categorical(torch.full((1, 3, 2), math.nan)),
            "the OOD score max_prob must be a number for each input, got NaN",
        ),
    ):
        assert message in refusal(evaluation.ood_scores, predictive)
    text = "from bdl_pipe import *\ndef first(p):\n"
    text += "    return p.log_probs[:, 0] if isinstance(p, Categorical) else None\n"
    load([write("t.py", text + "register_ood_score('first', first)")])
    plugins._loaded.pop("s.py"), evaluation.OOD_SCORES._others.pop("top")
    classes = Categorical(torch.rand(2, 3, 2).log_softmax(-1), {"own": torch.arange(3.0)})
    scores = evaluation.ood_scores(classes)
    assert list(scores) == ["max_prob", "mutual_information", "first", "own"]
    np.testing.assert_array_equal(scores["first"], classes.log_probs[:, 0].double())
    np.testing.assert_array_equal(scores["own"], [0.0, 1.0, 2.0])
    assert list(evaluation.ood_scores(numbers)) == ["variance"]
    twice = Categorical(torch.rand(2, 3, 2).log_softmax(-1), {"first": torch.arange(3.0)})
    assert "the OOD score first of Categorical is taken" in refusal(evaluation.ood_scores, twice)


def test_a_registered_metric_is_computed_and_checked_for_every_predictive() -> None:
    text = "import torch\nfrom bdl_pipe import *\ndef second(p, targets):\n"
    text += "    return (p.log_probs.topk(2).indices[:, 1] == targets) if isinstance(p, Categorical) else None\n"
    text += "register_metric('second', second, label='Second %', better=1, percent=True, of='predictive')"
    load([write("m.py", text)])
    metric = metrics.registered()[-1]
    assert (metric.name, metric.label, metric.better, metric.percent) == ("second", "Second %", 1, True)
    log_probs = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.5, 0.1, 0.4]]]).log()
    assert metric.batch(Categorical(log_probs), torch.tensor([1, 1, 0])) == metrics.Mean(2.0, 3)
    assert metric.batch(Gaussian(torch.zeros(1, 3, 2), torch.ones(1, 3, 2)), torch.zeros(3, 2)) is None
    text = "from bdl_pipe import *\nregister_metric('n', lambda p, y: 3, label='N', better=0, of='predictive')"
    load([write("n.py", text)])
    message = refusal(metrics.registered()[-1].batch, Categorical(log_probs), torch.tensor([1, 1, 0]))
    assert "the metric n must be a tensor of 3 rows, got int" in message


def test_a_partial_and_a_function_of_another_package_belong_to_the_plugin_that_registers_them() -> None:
    text = "from functools import partial\nimport numpy as np\nfrom bdl_pipe import *\n"
    text += "def off(p, y, by):\n    return y - by\n"
    text += "register_metric('off', partial(off, by=1), label='Off', better=0, of='predictive')\n"
    text += "register_ood_score('span', np.ptp)\n"
    load([write("m.py", text)])
    assert metrics.METRICS.module_of("off") == evaluation.OOD_SCORES.module_of("span") == plugins.module_name("m.py")
    assert np.ptp.__module__ == "numpy" and plugins.plugin_of("numpy") is None


@pytest.mark.process
def test_a_process_without_the_plugin_file_reads_a_sent_plugin(folder: Path) -> None:
    """An object that is sent with its plugins is read by a process that has neither the file nor the plugin."""
    from pipeline.work.hub import with_plugins

    assert with_plugins(folder) is folder, "without plugins nothing is wrapped"
    load([write("small.py", METHOD.replace("NAME", "small"))])
    method = METHODS["small"]
    Path("blob").write_bytes(pickle.dumps(with_plugins((method.stages["student"].fit, method.config(7)))))
    Path("small.py").unlink()
    text = "import pickle; fit, config = pickle.load(open('blob', 'rb')); from bdl_pipe import METHODS;"
    text += "print(fit(None, {}, config, rng=None, report=None).config, METHODS['small'].config is type(config))"
    assert fresh.run(folder, text).strip() == "{'posterior': 'small', 'size': 7} True"

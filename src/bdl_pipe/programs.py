"""A fitted posterior as a program that needs only torch, or only onnxruntime.

The program maps raw rows to class probabilities, or to the mean and variance in the targets' own units, and includes
the recalibration if there is one. It does not need this package. ``torch.export`` traces it from the code that
predicts, so no method is implemented twice; its outputs are compared with the posterior's before it is written.

A posterior can be traced if its predictions draw no random numbers: a network, an average or a set of networks, last
layers in closed form, a coreset's posterior, a distilled student. Distil other posteriors first.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .errors import UserError, brief, without_warnings
from .posterior import Predictor
from .predictive import Categorical
from .seeds import Seed

CLOSE: Final = 1e-5  # the largest allowed difference between program and posterior, relative to the largest output
_SPLITS: Final = (Tensor.split, torch.split)
_BATCH: Final = {0: torch.export.Dim("batch", min=1)}
_FIXED: Final = "specialized it to be a constant"
_TRIANGULAR: Final = torch.ops.aten.linalg_solve_triangular.default
_SQUEEZES: Final = tuple(getattr(torch.ops.aten.squeeze, name) for name in ("default", "dim", "dims"))


@final
class Answers(nn.Module):
    """A module whose outputs are a fitted posterior's probabilities [row, class], or means and variances."""

    def __init__(self, fitted: Predictor, rng: Seed) -> None:
        super().__init__()
        self._fitted, self._rng = fitted, rng

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        transformed = self._fitted.transformed(rows, rng=self._rng)
        if not isinstance(transformed, Categorical):
            values = self._fitted.final(transformed)
            return values.mean, values.variance
        learnt = self._fitted.recalibration
        return ((transformed if learnt is None else learnt.apply(transformed)).mean,)


Inputs = Tensor | dict[str, Tensor]  # a program's one argument


@dataclass(frozen=True)
class Program:
    """A traced posterior.

    Attributes:
        traced: the program, for ``torch.export.save``.
        outputs: the names of the outputs.
        rows: the inputs of the comparison: raw rows, or named tensors [row, ...].
        meant: the posterior's outputs for these inputs.
        error: the largest difference from these outputs, relative to the largest output.
    """

    traced: torch.export.ExportedProgram
    outputs: tuple[str, ...]
    rows: Inputs
    meant: tuple[Tensor, ...]
    error: float


def trace(fitted: Predictor, rows: Tensor, *, rng: Seed) -> Program:
    """Trace a fitted posterior and compare the program with it.

    Args:
        rows: at least three raw rows: images uint8 [n, channel, height, width], or columns float64 [n, column] as the
            schema encodes them.
        rng: the address of the posterior's predictions.

    Raises:
        UserError: see :func:`traced`.
    """
    return traced(Answers(fitted, rng), Answers(fitted, rng.fold("other")), rows)


def traced(answers: nn.Module, others: nn.Module, inputs: Inputs) -> Program:
    """Trace a module that answers as :class:`Answers` does, and compare the program with it.

    Args:
        others: the same with another address of its random numbers.
        inputs: at least three rows; the program takes any number of them.

    Raises:
        UserError: the answers are drawn, their code cannot be traced, or the program's outputs differ from the answers.
    """
    with torch.no_grad():
        meant, drawn = answers.eval()(inputs), others.eval()(inputs)
    if not all(torch.equal(one, other) for one, other in zip(meant, drawn, strict=True)):
        raise UserError("the posterior draws when it predicts; distil it with dark_knowledge and export the student")
    example = _each(inputs, lambda values: values[:3])
    try:
        with _quiet(), _WholeBatches(), torch.no_grad():
            program = torch.export.export(answers, (example,), dynamic_shapes=_any_batch(example), strict=False)
    except Exception as error:  # torch.export raises a dozen kinds
        fixed = _FIXED in str(error)
        why = "it fixes the number of rows: write x.shape[0] for len(x)" if fixed else brief(error)
        rule = "the posterior's code cannot be traced by torch.export"
        raise UserError(f"{rule}: {type(error).__name__}: {why}") from None
    names = ("probabilities",) if len(meant) == 1 else ("mean", "variance")
    return Program(program, names, inputs, meant, difference(program.module(), inputs, meant))


def difference(program: Callable[[Inputs], Any], inputs: Inputs, meant: tuple[Tensor, ...]) -> float:
    """Return the largest difference of a program's outputs from ``meant``, relative to the largest output.

    Raises:
        UserError: the difference is above :data:`CLOSE`.
    """
    with torch.no_grad():
        answers = program(inputs)
    pairs = list(zip(answers, meant, strict=True))
    worst = max(float((one.double() - other.double()).abs().max() / other.abs().max()) for one, other in pairs)
    if not worst <= CLOSE:
        raise UserError(f"the program must equal the posterior to {CLOSE:g} of the largest answer, got {worst:.2g}")
    return worst


def _each(inputs: Inputs, of: Callable[[Tensor], Any]) -> Any:
    return of(inputs) if isinstance(inputs, Tensor) else {name: of(values) for name, values in inputs.items()}


def _any_batch(inputs: Inputs) -> tuple[Any]:
    return (_each(inputs, lambda _: _BATCH),)


def write(program: Program, path: Path) -> None:
    """Write the program for ``torch.export.load``."""
    with _quiet():
        torch.export.save(program.traced, path)


def write_onnx(program: Program, path: Path) -> float:
    """Write the program for onnxruntime, and return its difference from the posterior's outputs.

    ONNX cannot solve triangular systems. Last layers in closed form have systems with a constant matrix, which become
    products with its inverse. Nor can it squeeze a dimension that is not 1, as a model's ``squeeze(-1)`` after its head
    does to the features; such a step is left out.

    Raises:
        UserError: a package is not installed, ONNX lacks an operation, or the outputs differ from the posterior's.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"ONNX needs onnxscript and onnxruntime ({error}): pip install 'bdl-pipe[onnx]'") from None
    names = ["rows"] if isinstance(program.rows, Tensor) else list(program.rows)
    try:
        with _quiet():
            model = torch.onnx.export(
                _in_onnx(program.traced),
                input_names=names,
                output_names=list(program.outputs),
                dynamo=True,
                verbose=False,
            )
        assert model is not None
        graph = model.model.graph
        for value in (value for node in graph for value in node.outputs):  # torch names a step, too, by its operation
            if value.name in (*names, *program.outputs) and value not in graph.outputs:
                value.name = f"{value.name}_within"
        model.save(str(path))
        session = onnxruntime.InferenceSession(str(path))
    except Exception as error:  # torch.onnx's and onnxruntime's exceptions are private
        lines = [line.strip() for line in str(error).splitlines()]
        why = next((line for line in lines if "No ONNX function" in line), brief(error))  # it names the operation
        raise UserError(f"{path.name}: ONNX cannot hold it: {type(error).__name__}: {why}") from None

    def run(inputs: Inputs) -> Any:
        named = {"rows": inputs} if isinstance(inputs, Tensor) else inputs
        return map(torch.from_numpy, session.run(None, {name: values.numpy() for name, values in named.items()}))

    return difference(run, program.rows, program.meant)


@final
class _WholeBatches(TorchFunctionMode):
    """Keep a batch of unknown size whole inside the context, so that the program's user chooses the batch size."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _SPLITS:
            values, dim = args[0], (kwargs or {}).get("dim", args[2] if len(args) > 2 else 0)
            if isinstance(values.shape[dim], torch.SymInt):
                return (values,)
        return func(*args, **(kwargs or {}))


def _in_onnx(traced: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Replace L⁻¹B, if L does not depend on an input, by a product with its inverse, and leave out idle squeezes."""
    module = traced.run_decompositions().module()
    assert isinstance(module, torch.fx.GraphModule)
    systems = [node for node in module.graph.nodes if node.target is _TRIANGULAR and _constant(node.args[0])]
    squeezes = [node for node in module.graph.nodes if node.target in _SQUEEZES]
    idle = [node for node in squeezes if node.meta["val"].ndim == node.args[0].meta["val"].ndim]
    if not systems and not idle:
        return traced
    for node in idle:
        node.replace_all_uses_with(node.args[0])
    for number, node in enumerate(systems):
        matrix, options = _value(module, node.args[0]), {"left": True, "unitriangular": False, **node.kwargs}
        eye = torch.eye(matrix.shape[-1], dtype=torch.float64)
        inverse = torch.linalg.solve_triangular(matrix.double(), eye, **(options | {"left": True}))
        name = f"inverse_{number}"
        module.register_buffer(name, inverse.to(matrix.dtype))
        with module.graph.inserting_before(node):
            constant = module.graph.get_attr(name)
            pair = (constant, node.args[1]) if options["left"] else (node.args[1], constant)
            product = module.graph.call_function(torch.ops.aten.matmul.default, pair)
        node.replace_all_uses_with(product)
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    assert traced.example_inputs is not None
    with torch.no_grad():
        (example,) = traced.example_inputs[0]
        return torch.export.export(module, (example,), dynamic_shapes=_any_batch(example), strict=False)


def _constant(node: torch.fx.Node) -> bool:
    return node.op != "placeholder" and all(map(_constant, node.all_input_nodes))


def _value(module: nn.Module, node: torch.fx.Node) -> Any:
    """Compute a constant of the graph."""
    if node.op == "get_attr":
        place, _, name = str(node.target).rpartition(".")
        return getattr(module.get_submodule(place), name).detach()
    assert callable(node.target)
    arguments, options = torch.fx.map_arg((node.args, node.kwargs), lambda below: _value(module, below))
    return node.target(*arguments, **options)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output of torch.export and torch.onnx: advice, and the graph that they could not trace."""
    with without_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)

"""The folder of an exported program: the program, the encoding of rows, a script that runs it, and a card.

The script needs torch, or onnxruntime and numpy, and pyarrow for tables, but not this package.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

import bdl_pipe
from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

from .torch_program import Program, write_onnx

_LIBRARY: Final = Path(bdl_pipe.__file__).parent
PROGRAM, ONNX, SCHEMA, CARD, ROWS = "program.pt2", "model.onnx", "schema.json", "README.md", "rows"
_READER: Final = (  # what `data.tables.read` imports: the reader of tables stands alone, without torch
    *("config.py", "errors.py", "files.py", "data/scratch.py", "data/tables/read.py", "data/tables/cells.py"),
    *("data/tables/columns.py", "data/tables/formats.py", "data/tables/forms.py"),
)
_READ: Final = '''"""Read new rows as `python -m pipeline predict` does; the other files here are bdl_pipe's."""

import sys
from pathlib import Path

from .data.tables.read import read_rows
from .errors import DataError


def read(path, schema):
    """Read the fitted columns of a CSV or Parquet file, float64 [n, column]; end with one line if it is wrong."""
    try:
        return read_rows(Path(path), schema)
    except DataError as error:
        sys.exit(str(error))
'''
_TORCH: Final = """import torch

program = torch.export.load("program.pt2").module()


def answers(rows):
    with torch.no_grad():
        return [answer.numpy() for answer in program(torch.from_numpy(rows))]
"""
_ONNX: Final = """import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")


def answers(rows):
    return session.run(None, {"rows": rows})
"""
_IMAGES: Final = """
# python {script} images.npy: uint8 {shape}
rows = np.load(sys.argv[1])
"""
_TABLE: Final = """
# python {script} new.csv (or new.parquet): columns by name, as in the file that was fitted
rows = read(sys.argv[1], json.load(open("schema.json")))
"""
_PRINTED: Final = """
for row in zip(*answers(rows)):
    print(*(dict(zip({names}, values.tolist())) for values in row))
"""


def write(
    folder: Path, program: Program, schema: Mapping[str, Any], facts: Mapping[str, Any], limits: Sequence[str] = ()
) -> list[str]:
    """Write the folder's files.

    Args:
        folder: an existing, empty folder.
        schema: ``schema.json`` of the fitted data.
        facts: the rows of the card's table: the method, the data and its licence, scores, the commit, …
        limits: additional sentences for the card's section on limits.

    Returns:
        The names of the written programs.
    """
    torch.export.save(program.traced, folder / PROGRAM)
    programs, lines = [PROGRAM], list(limits)
    try:
        error = write_onnx(program, folder / ONNX)
        programs.append(ONNX)
    except UserError as failed:
        (folder / ONNX).unlink(missing_ok=True)
        lines.append(f"There is no `{ONNX}`: {failed}.")
        error = 0.0
    names = schema["classes"] or schema["targets"]
    for file, head in (("run_torch.py", _TORCH), ("run_onnx.py", _ONNX)):
        if file == "run_torch.py" or ONNX in programs:
            write_bytes(folder / file, _script(file, head, schema, names).encode())
    if schema["kind"] != "image":
        for file in _READER:
            (folder / ROWS / file).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / ROWS / file, (_LIBRARY / file).read_bytes())
        write_bytes(folder / ROWS / "__init__.py", _READ.encode())
    write_bytes(folder / SCHEMA, (json.dumps(schema, indent=1, sort_keys=True) + "\n").encode())
    write_bytes(folder / CARD, card(program, schema, facts, lines, programs, max(program.error, error)).encode())
    return programs


def card(
    program: Program,
    schema: Mapping[str, Any],
    facts: Mapping[str, Any],
    limits: Sequence[str],
    made: Sequence[str],
    error: float,
) -> str:
    """Return the card: a description of the program, its inputs and outputs, its origin and its limits."""
    if schema["kind"] == "image":
        taken = f"images uint8 [n, {', '.join(map(str, schema['input_shape']))}], as they are: 0 is black, 255 white"
    else:
        taken = f"float64 [n, {len(schema['features'])}], one number a cell as `{SCHEMA}` codes it"
        taken += "; a script takes CSV or Parquet"
    outputs = (
        "probabilities [n, class]"
        if len(program.outputs) == 1
        else "mean and variance [n, target], in the targets' units"
    )
    rows = [f"| {key} | {value} |" for key, value in facts.items()]
    needs = "numpy" if schema["kind"] == "image" else "numpy and pyarrow"
    scripts = f"`run_torch.py` (needs torch, {needs})" + (
        f", `run_onnx.py` (onnxruntime, {needs})" if ONNX in made else ""
    )
    fixed = (
        "It is made for rows like its training rows. On other rows its answers are as uncertain as its method makes "
        "them: see the scores.",
        "A new category counts as a rare category or, if there are none, as no category.",
    )
    return "\n".join(
        [
            f"# {facts['Run']}",
            "",
            f"- In: {taken}.",
            f"- Out: {outputs}; in this order: {', '.join(schema['classes'] or schema['targets'])}.",
            f"- How: {scripts}. Call it with up to a few thousand rows at a time.",
            f"- Checked: {', '.join(f'`{name}`' for name in made)}; their answers differ from the fitted "
            f"posterior's by at most {error:.1g} of the largest answer.",
            "",
            "| | |",
            "| --- | --- |",
            *rows,
            "",
            "## Limits",
            "",
            *(f"- {line}" for line in (*(fixed[:1] if schema["kind"] == "image" else fixed), *limits)),
            "",
        ]
    )


def _script(file: str, head: str, schema: Mapping[str, Any], names: Sequence[str]) -> str:
    image = schema["kind"] == "image"
    first = "import sys\n" if image else "import json\nimport sys\n"
    reads = (
        _IMAGES.format(script=file, shape=["n", *schema["input_shape"]]) if image else _TABLE.replace("{script}", file)
    )
    needed = "import numpy as np\n" if image else "from rows import read\n"
    return f"{first}\n{needed}{head}\n{reads}\n{_PRINTED.format(names=list(names))}"

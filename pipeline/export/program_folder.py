"""The folder of an exported program: the program, the encoding of rows, a script that runs it, and a card.

The script needs torch, or onnxruntime and numpy, and pyarrow for tables, but not this package. Script and card are
templates.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import bdl_pipe
from bdl_pipe import programs
from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes
from bdl_pipe.programs import Program, write_onnx

from .shared import TEMPLATES

_LIBRARY: Final = Path(bdl_pipe.__file__).parent
PROGRAM, ONNX, SCHEMA, CARD, ROWS = "program.pt2", "model.onnx", "schema.json", "README.md", "rows"
_READER: Final = (  # what `data.tables.read` imports: the reader of tables stands alone, without torch
    *("config.py", "errors.py", "files.py", "data/scratch.py", "data/tables/read.py", "data/tables/cells.py"),
    *("data/tables/columns.py", "data/tables/formats.py", "data/tables/forms.py"),
)


def write(
    folder: Path, program: Program, schema: Mapping[str, Any], facts: Mapping[str, object], limits: Sequence[str] = ()
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
    programs.write(program, folder / PROGRAM)
    written, packages, lines, error = [PROGRAM], ["torch"], list(limits), program.error
    try:
        error = max(error, write_onnx(program, folder / ONNX))
        written, packages = [PROGRAM, ONNX], ["torch", "onnx"]
    except UserError as failed:
        (folder / ONNX).unlink(missing_ok=True)
        lines.append(f"There is no `{ONNX}`: {failed}.")
    is_image = schema["kind"] == "image"
    about = {"schema": schema, "image": is_image, "names": schema["classes"] or schema["targets"]}
    for package in packages:
        script = TEMPLATES.get_template("run_program.py.jinja").render(about, package=package)
        write_bytes(folder / f"run_{package}.py", script.encode())
    if not is_image:
        for file in _READER:
            (folder / ROWS / file).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / ROWS / file, (_LIBRARY / file).read_bytes())
        write_bytes(folder / ROWS / "__init__.py", TEMPLATES.get_template("rows.py.jinja").render().encode())
    write_bytes(folder / SCHEMA, (json.dumps(schema, indent=1, sort_keys=True) + "\n").encode())
    card = TEMPLATES.get_template("program.md.jinja").render(
        about,
        file=SCHEMA,
        outputs=program.outputs,
        needs="numpy" if is_image else "numpy and pyarrow",
        onnx=ONNX in written,
        programs=written,
        error=error,
        facts=facts,
        limits=lines,
    )
    write_bytes(folder / CARD, card.encode())
    return written

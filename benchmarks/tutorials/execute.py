"""Run one tutorial in this process: ``python -m benchmarks.tutorials.execute SCRIPT FOLDER``.

``FOLDER/cells.json`` gets the output of each cell of the script and the names of its pictures, which lie in ``FOLDER``.
"""

import contextlib
import io
import json
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from PIL import Image

from .script import cells

LARGEST: Final = 60_000  # bytes of a picture
_STYLE: Final = {
    "figure.figsize": (7.2, 3.2),
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def run(script: Path, folder: Path) -> list[dict[str, Any]]:
    """Run the cells one after another in one namespace; return the output and the pictures of each cell.

    Raises:
        SystemExit: a cell failed; its traceback is on stderr.
    """
    sys.path.insert(0, str(script.parent))
    plt.rcParams.update(_STYLE)
    plt.show = lambda *_, **__: None  # a cell's figures are kept at its end
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    found: list[dict[str, Any]] = []
    for number, cell in enumerate(cells(script.read_text())):
        out = io.StringIO()
        if cell.kind != "markdown":
            code = compile("\n" * (cell.line - 1) + cell.text, str(script), "exec")
            try:
                with contextlib.redirect_stdout(out):
                    exec(code, namespace)
            except BaseException:
                print(out.getvalue(), file=sys.stderr)
                traceback.print_exc()
                raise SystemExit(f"{script.name}: the cell at line {cell.line} failed") from None
        pictures = [_draw(plt.figure(n), folder / f"{number}-{n}.png") for n in plt.get_fignums()]
        plt.close("all")
        found.append({"printed": out.getvalue().rstrip(), "pictures": pictures})
    return found


def _draw(figure: Any, path: Path) -> dict[str, str]:
    """Write a figure with as many colours as the largest size allows; its titles describe it.

    Raises:
        ValueError: the picture is too large even with eight colours.
    """
    raw = io.BytesIO()
    figure.savefig(raw)
    for colours in (128, 64, 32, 16, 8):
        picture = Image.open(raw).convert("RGB").quantize(colours, dither=Image.Dither.NONE)
        picture.save(path, optimize=True)
        if path.stat().st_size <= LARGEST:
            titles = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
            return {"file": path.name, "shows": " · ".join(dict.fromkeys(title for title in titles if title))}
    raise ValueError(f"{path.name}: a picture must have at most {LARGEST} bytes, got {path.stat().st_size}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)  # packages warn; readers need only the output
    place = Path(sys.argv[2])
    (place / "cells.json").write_text(json.dumps(run(Path(sys.argv[1]).resolve(), place)))

"""The column *cost* of docs/methods.md, from the stored comparison.

    python -m benchmarks.pages.method_costs

A method's cost is taken from its run in ``results/comparison/comparison.md``: the seconds of a fit, including the runs
that it needs, and the number of stored parameters, on Fashion-MNIST if the method has a run there, else on boston. A
row with several methods has the first method's cost; a method with several settings has the last setting's. A protocol
for any coreset has no cost, since the coreset determines it.
"""

from pathlib import Path

RUN, TABLE = Path("results/comparison/comparison.md"), Path("docs/methods.md")
PROTOCOLS = ("coreset_vi", "coreset_nn", "coreset_sgmcmc")


def main() -> None:
    """Write the column."""
    TABLE.write_text(with_costs(TABLE.read_text(), RUN.read_text()))


def with_costs(page: str, comparison: str) -> str:
    """Return the page with the costs of the comparison in its last column."""
    costs = costs_of(comparison)
    lines = page.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("| [`"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            method = cells[0].split("`")[1]
            cells[-1] = "" if method in PROTOCOLS else costs.get(method, "")
            lines[number] = "| " + " | ".join(cells) + " |"
            lines[number] = lines[number].replace("|  |", "| |").replace("|  |", "| |")
    return "\n".join(lines)


def costs_of(comparison: str) -> dict[str, str]:
    """Return each method's cost, by its name in the comparison."""
    found: dict[str, str] = {}
    for dataset in ("boston", "fashion_mnist"):
        table = comparison.partition(f"## {dataset}\n")[2].partition("\n## ")[0].splitlines()
        rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in table if line.startswith("|")]
        for row in (dict(zip(rows[0], cells, strict=True)) for cells in rows[2:]):
            found[row["Method"]] = f"{row['Fit']}, {row['Parameters']}"
    return found


if __name__ == "__main__":
    main()

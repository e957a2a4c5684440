"""Run the notebooks of the examples and keep what their cells show: `python docs/notebooks.py`.

A cell runs as Python code in the folder of its notebook, one after another in one name space. What
its last line is shows as in Jupyter; nothing but Wattree and what the cells import is needed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "notebooks"

Cell = dict[str, Any]


def notebooks() -> list[Path]:
    """Return the notebooks that ship."""
    return sorted(FOLDER.glob("*.ipynb"))


def outputs_of(notebook: dict[str, Any]) -> list[list[Cell]]:
    """Return what each code cell prints and shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with contextlib.chdir(FOLDER):
        return [
            _run("".join(cell["source"]), names, number) for number, cell in enumerate(cells, 1)
        ]


def _run(source: str, names: dict[str, Any], number: int) -> list[Cell]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)  # noqa: S102 - a notebook that ships
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)  # noqa: S307
    found: list[Cell] = []
    if text := printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": _lines(text)})
    if value is not None:
        found.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "metadata": {},
                "data": _shown(value),
            }
        )
    return found


def _shown(value: Any) -> dict[str, list[str]]:
    """Return a value by format, as Jupyter asks it."""
    data = {"text/plain": _lines(repr(value))}
    html = getattr(value, "_repr_html_", None)
    if html is not None and (text := html()):
        data["text/html"] = _lines(text)
    return data


def _lines(text: str) -> list[str]:
    return text.rstrip("\n").splitlines(keepends=True)


def main() -> None:
    """Run all, and write their outputs."""
    for path in notebooks():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        shown = iter(outputs_of(notebook))
        number = 0
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                cell |= {"execution_count": number, "outputs": next(shown)}
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: made")


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    main()

"""Makes guide.ipynb from docs/guide.md: text becomes text cells, Python blocks code cells.

    python examples/guide/notebook.py

It also puts the scripts that the page shows into the page. `tests/test_docs.py` checks that both
are up to date, and runs the notebook from top to bottom.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "guide.md"
NOTEBOOK = HERE / "guide.ipynb"
SHOWN = re.compile(r"(<!-- (?:file|function): (\S+)(?: (\w+))? -->\n```python\n).*?(```\n)", re.S)
BLOCK = re.compile(r"```(\w+)\n(.*?)```\n", re.S)


def with_scripts(page: str) -> str:
    """The page with the present text of the scripts that it shows."""
    return SHOWN.sub(lambda m: f"{m[1]}{_shown(m[2], m[3])}{m[4]}", page)


def _shown(path: str, function: str | None) -> str:
    text = (HERE.parents[1] / path).read_text()
    if function is None:
        return text
    tree = ast.parse(text)
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]) + "\n"


def cells(page: str) -> list[dict[str, object]]:
    """The page as cells. A script that the page only shows stays text: the notebook imports it."""
    page = re.sub(r"<!-- .*? -->\n```python\n", "```py\n", page)
    page = page.replace("](../examples/guide/guide.ipynb)", "](guide.ipynb)")
    page = re.sub(r"\]\((\w+\.(?:md|png))", r"](../../docs/\1", page)
    out, at = [], 0
    for block in BLOCK.finditer(page):
        if block[1] == "python":
            out += [_cell("markdown", page[at : block.start()]), _cell("code", block[2])]
            at = block.end()
    return [cell for cell in [*out, _cell("markdown", page[at:])] if cell["source"]]


def _cell(kind: str, text: str) -> dict[str, object]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.strip(), **code}


def notebook(page: str) -> str:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells(page), "metadata": {"kernelspec": kernel}}
    return json.dumps({**book, "nbformat": 4, "nbformat_minor": 4}, indent=1) + "\n"


def main() -> None:
    page = with_scripts(PAGE.read_text())
    PAGE.write_text(page)
    NOTEBOOK.write_text(notebook(page))


if __name__ == "__main__":
    main()

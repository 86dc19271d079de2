"""For mkdocs: pictures from examples/results, and links to files that are no pages.

The pages are written to be read in the repository, where ``../examples`` exists. On the site
pictures are copied along, and a link to a script becomes its name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PICTURE = re.compile(r"\]\(\.\./(examples/\S+?\.(?:png|svg))\)")
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./(?!examples/\S+\.(?:png|svg))([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pictures of the examples."""
    for picture in sorted((ROOT / "examples" / "results").rglob("*.png")):
        path = picture.relative_to(ROOT).as_posix()
        files.append(File.generated(config, path, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links that hold on the site."""
    return PICTURE.sub(r"](\1)", OUTSIDE.sub(r"\1 (`\2`)", markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Without the marks for doctest, which only the tests need."""
    return re.sub(r" *(<span class=\"c1\">)?# doctest: \+SKIP(</span>)?", "", html)

"""What setup.cfg cannot say: addresses, for a package index, of a repository that has one.

The package stands in setup.cfg, which names no address while there is none. With the repository's
in GNN_MUP_URL (``GNN_MUP_URL=https://github.com/owner/gnn_mup python -m build``) the pictures and
links of README.md are absolute, as a package index needs them, and the project has its URLs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from setuptools import setup

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def absolute(text: str, address: str) -> str:
    """Markdown whose relative links lead to a repository: pictures to the file itself.

    >>> absolute("![a](docs/a.png), [b](docs/b.md)", "https://host/me/it")
    '![a](https://host/me/it/raw/main/docs/a.png), [b](https://host/me/it/blob/main/docs/b.md)'
    """

    def link(match: re.Match[str]) -> str:
        picture, words, path = match.groups()
        return f"{picture}[{words}]({address}/{'raw' if picture else 'blob'}/main/{path})"

    return LINK.sub(link, text)


def addresses(address: str) -> dict[str, Any]:
    """Arguments of `setup` for a repository at this address; none where it is empty."""
    if not address:
        return {}
    readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    pages = {"Source": "", "Documentation": "/tree/main/docs", "Issues": "/issues"}
    pages["Changes"] = "/blob/main/CHANGELOG.md"
    return {
        "url": address,
        "project_urls": {name: address + page for name, page in pages.items()},
        "long_description": absolute(readme, address),
    }


if __name__ == "__main__":
    setup(**addresses(os.environ.get("GNN_MUP_URL", "").rstrip("/")))

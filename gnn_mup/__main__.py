"""`python -m gnn_mup`: the same as the command `gnn-mup`."""

from __future__ import annotations

import sys

from gnn_mup.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""What a sweep shows: where the best learning rate goes as the model grows, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnn_mup.errors import TransferError

from .numbers import KEYS, Curves

if TYPE_CHECKING:
    import pandas as pd


class SweepReport(Curves):
    """Loss over parameterization, size, learning rate and seed. Print it, plot it, or read it.

    >>> cells = [dict(transfer="transfer", width=w, depth=2, lr=lr, seed=0, loss=loss)
    ...          for w, losses in {16: (0.9, 0.5, 0.8), 32: (0.8, 0.44, 0.4)}.items()
    ...          for lr, loss in zip((0.1, 0.2, 0.4), losses)]
    >>> report = SweepReport(cells)
    >>> report.drift["transfer"], round(report.regret["transfer"][32, 2], 3)
    ({(16, 2): 0.0, (32, 2): 1.0}, 1.1)

    Args:
        cells: one dict per run: transfer, width, depth, lr, seed, loss, and whatever else was
            measured (metric, best_loss, best_metric, diverged, seconds, ...).
        column: which number is judged; lower is better.
        expected: how many runs there should be, to say how many are missing.
    """

    def __init__(
        self,
        cells: Iterable[Mapping[str, Any]],
        *,
        column: str = "loss",
        expected: int | None = None,
        notes: Sequence[str] = (),
        title: str = "",
    ) -> None:
        super().__init__(cells, column)
        self.notes, self.title = tuple(notes), title
        self.missing = max((expected or 0) - len(self.cells), 0)

    def table(self) -> pd.DataFrame:
        """One row per parameterization and size: best rate and loss, drift, regret, sharpness."""
        import pandas as pd

        rows = []
        for kind, sizes in self.best.items():
            fixed = self.at_anchor(kind)
            for size, (rate, least) in sizes.items():
                numbers = {
                    "best_lr": rate,
                    f"best_{self.column}".replace("best_best", "best"): least,
                }
                numbers |= {"at_fixed_lr": fixed[size], "drift": self.drift[kind][size]}
                numbers |= {"regret": self.regret[kind][size]}
                numbers |= {"sharpness": self.sharpness[kind][size]}
                rows.append({"transfer": kind, "width": size[0], "depth": size[1], **numbers})
        return pd.DataFrame(rows)

    def summary(self) -> pd.DataFrame:
        """One row per parameterization: worst drift and regret; does loss fall with size?"""
        import pandas as pd

        rows = []
        for kind in self.best:
            last = self.sizes(kind)[-1]
            rows.append(
                {
                    "transfer": kind,
                    "drift": max(self.drift[kind].values(), key=abs),
                    "drift_largest": self.drift[kind].get(last, math.nan),
                    "regret": max(self.regret[kind].values()),
                    "regret_largest": self.regret[kind].get(last, math.nan),
                    "best_largest": self.best[kind].get(last, (math.nan, math.nan))[1],
                    "falls": self.falls[kind],
                }
            )
        return pd.DataFrame(rows)

    def on(self, column: str) -> SweepReport:
        """The same runs, judged by another column where lower is better (``"best_loss"``)."""
        expected = len(self.cells) + self.missing
        return SweepReport(
            self.cells, column=column, expected=expected, notes=self.notes, title=self.title
        )

    # -- the forms ---------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row per run."""
        import pandas as pd

        return pd.DataFrame(self.cells)

    def to_csv(self, path: str | Path) -> None:
        """One row per run; `SweepReport.from_csv` reads it again."""
        self.to_frame().to_csv(path, index=False)

    @classmethod
    def from_csv(cls, path: str | Path, **arguments: Any) -> SweepReport:
        import pandas as pd

        frame = pd.read_csv(path)
        missing = [key for key in (*KEYS, "loss") if key not in frame]
        if missing:
            raise TransferError(f"{path} has no column {', '.join(missing)}: not from to_csv")
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        cells = [{str(k): v for k, v in row.items() if v is not None} for row in rows]
        return cls(cells, **arguments)

    def to_dict(self) -> dict[str, Any]:
        return {
            "summary": self.summary().to_dict("records"),
            "sizes": self.table().to_dict("records"),
            "warnings": self.warnings,
            "runs": len(self.cells),
            "missing": self.missing,
        }

    @property
    def warnings(self) -> list[str]:
        short = [f"{self.missing} runs are missing: call sweep again"] * bool(self.missing)
        return [*short, *self.edges, *self.notes]

    def plot(
        self,
        path: str | Path,
        title: str | None = None,
        axis: str = "learning rate",
        log: bool = False,
    ) -> Path:
        """Loss (and metric) against the learning rate, one line per size, side by side.

        ``log``: losses on a logarithmic axis too."""
        from .plots import plot_rates

        return plot_rates(self, Path(path), self.title if title is None else title, axis, log)

    def plot_sizes(self, path: str | Path, title: str | None = None) -> Path:
        """Loss against size: at the smallest size's best learning rate, and at each size's own."""
        from .plots import plot_sizes

        return plot_sizes(self, Path(path), self.title if title is None else title)

    def to_html(self, path: str | Path) -> Path:
        """Tables and pictures in one file that needs no other."""
        from .text import page

        Path(path).write_text(page(self), encoding="utf-8")
        return Path(path)

    def __str__(self) -> str:
        from .text import text

        return text(self)

    def __repr__(self) -> str:
        return f"<SweepReport: {len(self.cells)} runs, {', '.join(self.kinds)}>"

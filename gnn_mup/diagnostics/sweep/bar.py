"""A bar over the cells of a sweep, with the time left: larger models take longer."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from .cells import Cell, Queue
from .store import RESULT


class Bar:
    """Counts what all workers have done; silent below a second, and when not wanted."""

    def __init__(self, queue: Queue, shown: bool) -> None:
        self.queue, self.shown = queue, shown
        self.bar: Any = None

    def __enter__(self) -> Bar:
        if self.shown:
            from tqdm import tqdm

            form = "{desc}: {percentage:3.0f}%|{bar:25}| {n_fmt}/{total_fmt} runs, "
            form += "{elapsed}{postfix}"
            total = len(self.queue.cells)
            name = self.queue.store.name
            self.bar = tqdm(total=total, desc=name, delay=1.0, bar_format=form)
        return self

    def show(self, cell: Cell) -> None:
        """Before a cell is run: where all of it stands."""
        if self.bar is None:
            return
        done, left = self.stand()
        small = f"{cell.transfer} ({cell.width}, {cell.depth})" if cell.depth else str(cell.width)
        self.bar.set_postfix_str(f"{small}, {spoken(left)} left" if left else small, refresh=False)
        self.bar.update(done - self.bar.n)

    def stand(self) -> tuple[int, float]:
        """How many cells are done, and the seconds that the rest will take."""
        living = self.queue.store.living()
        times: dict[tuple[int, int], list[float]] = {}
        open_, workers = [], 1
        for cell in self.queue.cells:
            trial = living.get(cell.key)
            if trial is not None and trial.state.name == "COMPLETE":
                seconds = trial.user_attrs.get(RESULT, {}).get("seconds")
                if seconds and not trial.user_attrs[RESULT].get("diverged"):
                    times.setdefault(cell.size, []).append(seconds)
            else:
                open_.append(cell)
                workers += trial is not None and trial.state.name == "RUNNING"
        return len(self.queue.cells) - len(open_), seconds_left(open_, times, workers - 1 or 1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is None:
            return
        done, total = self.stand()[0], len(self.queue.cells)
        self.bar.set_postfix_str("", refresh=False)
        self.bar.update(done - self.bar.n)
        self.bar.close()
        if kind is KeyboardInterrupt:
            self.bar.write(
                f"stopped: {done} of {total} runs are in {self.queue.store.where}; "
                "the same call goes on from there"
            )


def seconds_left(
    open_: list[Cell], times: dict[tuple[int, int], list[float]], workers: int
) -> float:
    """What has been measured for a size, else what the nearest one suggests by its work."""
    if not times:
        return 0.0
    mean = {size: sum(t) / len(t) for size, t in times.items()}

    def guess(size: tuple[int, int]) -> float:
        if size in mean:
            return mean[size]
        near = min(mean, key=lambda s: abs(work(s) - work(size)))
        return mean[near] * work(size) / work(near)

    return sum(guess(cell.size) for cell in open_) / max(workers, 1)


def work(size: tuple[int, int]) -> float:
    """Small widths cost overhead, large ones arithmetic."""
    return max(size[1], 1) * (64.0 + size[0])


def spoken(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


__all__ = ["Bar", "seconds_left", "spoken"]

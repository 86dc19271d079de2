"""Real data: where it lies, how it is loaded, and what a measurement accepts as `data`.

``raw/`` folders may be read-only and shared: they are copied into a cache folder
(``$GNN_MUP_CACHE``, else ``~/.cache/gnn_mup``), where PyG writes its ``processed/``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from torch_geometric.data import Batch, Data, HeteroData

from ..errors import TransferError
from ..extras import needs

Transform = Callable[[Any], Any]


class _Set(NamedTuple):
    folder: str
    splits: tuple[str, ...]
    make: Callable[[Path, str, Transform | None], Any]


def data_root(root: str | Path | None = None) -> Path | None:
    """The folder with the data sets: `root`, else ``$GNN_MUP_DATA``, else None.

    >>> data_root(".")
    PosixPath('.')

    Args:
        root: A folder that holds Planetoid, QM9, MNISTSuperpixels and CamVid-SP.
    """
    chosen = root or os.environ.get("GNN_MUP_DATA")
    if not chosen:
        return None
    path = Path(chosen).expanduser()
    if not path.is_dir():
        origin = "root" if root else "$GNN_MUP_DATA"
        raise TransferError(f"{origin} is {str(path)!r}, which is not a folder. Set it to one.")
    return path


def load(
    name: str,
    root: str | Path | None = None,
    *,
    split: str | None = None,
    transform: Transform | None = None,
) -> Any:
    """A data set of the paper by name, as a PyG `Dataset` or a list of `Data`.

    >>> len(load("digits"))
    1797

    Args:
        name: "Cora", "CiteSeer", "PubMed", "QM9", "MNIST", "CamVid-SP" or "digits".
        root: See `data_root`. Where none is found, PyG downloads (not CamVid-SP).
        split: "full" or "public" (citation graphs), "train" or "test" (MNIST), "train", "val"
            or "test" (CamVid-SP); the first named is the default.
        transform: A PyG transform.
    """
    key = next((k for k in _SETS if k.lower() == name.lower()), None)
    if key is None:
        raise TransferError(f"No data set is called {name!r}; there are {', '.join(_SETS)}.")
    folder, splits, make = _SETS[key]
    if split is not None and split not in splits:
        raise TransferError(f"{key} has no split {split!r}; it has {', '.join(splits)}.")
    return make(_place(key, folder, data_root(root)), split or splits[0], transform)


def digits(n: int | None = None, size: int = 8) -> list[Any]:
    """Scikit-learn's handwritten digits as grid graphs; nothing is downloaded.

    One node a pixel, joined to its (up to) eight neighbours; the feature is the intensity,
    scaled to RMS near one; y is the digit.

    >>> digits(1)
    [Data(x=[64, 1], edge_index=[2, 420], y=[1])]

    Args:
        n: How many, from the first on; None: all 1,797.
        size: Pixels along a side: 8, or 4 or 2 by averaging.
    """
    if size not in (2, 4, 8):
        raise TransferError(f"digits: size is {size}; the images are 8 x 8, so use 8, 4 or 2.")
    needs("digits", "sklearn")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    if n is not None and not 1 <= n <= len(labels):
        raise TransferError(f"digits: n is {n}; there are {len(labels)}, so use 1 to that.")
    x = torch.as_tensor(images[:n], dtype=torch.float32).view(-1, 1, 8, 8) / 8.0
    x = torch.nn.functional.avg_pool2d(x, 8 // size).view(-1, size * size, 1)
    y = torch.as_tensor(labels[:n]).long().view(-1, 1)
    edges = _grid_edges(size)
    return [Data(x=a, edge_index=edges, y=b) for a, b in zip(x, y, strict=True)]


def graphs_of(data: Any) -> Sequence[Any]:
    """The single graphs of whatever holds graphs, in order.

    >>> len(graphs_of(digits(3)))
    3

    Args:
        data: A PyG `Dataset`, a list of `Data`, a `DataLoader` (its batches are split), one
            `Data` or a `Batch`. Data sets stay lazy: a graph is read when it is asked for.
    """
    graphs: Sequence[Any]
    if isinstance(data, Data | HeteroData):
        graphs = _split(data)
    elif isinstance(data, Mapping):
        raise TransferError(f"data is a dict with keys {list(data)}; pass one of its values.")
    elif _is_lazy(data):
        graphs = data
    elif isinstance(data, Iterable) and not isinstance(data, str | torch.Tensor):
        graphs = [graph for item in data for graph in _split(item)]
    else:
        raise TransferError(f"data is a {type(data).__name__}; {_ACCEPTED}")
    if not len(graphs):
        raise TransferError(f"data holds no graph; {_ACCEPTED}")
    _split(graphs[0])
    return graphs


_ACCEPTED = "pass a PyG Dataset, a list of Data, a DataLoader, one Data or a Batch."


def _is_lazy(data: Any) -> TypeGuard[Sequence[Any]]:
    """A data set (not a loader, not a list) that can be read graph by graph."""
    return (
        isinstance(data, torch.utils.data.Dataset)
        and hasattr(data, "__len__")
        and not isinstance(data, torch.utils.data.IterableDataset)
    )


def _split(item: Any) -> list[Any]:
    if isinstance(item, HeteroData) or not isinstance(item, Data):
        raise TransferError(
            f"data holds a {type(item).__name__}, not a Data. "
            + ("Use .to_homogeneous()." if isinstance(item, HeteroData) else _ACCEPTED)
        )
    if not isinstance(item, Batch):
        return [item]
    try:
        return list(item.to_data_list())
    except RuntimeError as error:
        raise TransferError(f"A Batch cannot be split: {error}. Pass a list of Data.") from error


def _grid_edges(size: int) -> torch.Tensor:
    cell = torch.cartesian_prod(torch.arange(size), torch.arange(size))
    distance = (cell[:, None] - cell[None]).abs().amax(dim=-1)
    return (distance == 1).nonzero().t().contiguous()


def _planetoid(name: str) -> _Set:
    def make(place: Path, split: str, transform: Transform | None) -> Any:
        from torch_geometric.datasets import Planetoid

        return Planetoid(str(place / "Planetoid"), name, split=split, transform=transform)

    return _Set(f"Planetoid/{name}", ("full", "public"), make)


def _qm9(place: Path, split: str, transform: Transform | None) -> Any:
    from torch_geometric.datasets import QM9

    return QM9(str(place / "QM9"), transform=transform)


def _mnist(place: Path, split: str, transform: Transform | None) -> Any:
    from torch_geometric.datasets import MNISTSuperpixels

    return MNISTSuperpixels(str(place / "MNISTSuperpixels"), split == "train", transform=transform)


def _camvid(place: Path, split: str, transform: Transform | None) -> Any:
    sets = torch.load(place / "CamVid-SP" / "camvid_sp.pt", weights_only=True)
    graphs = [Data(**g) for g in sets[split]]
    return [transform(g) for g in graphs] if transform else graphs


def _digits(place: Path, split: str, transform: Transform | None) -> Any:
    return [transform(g) for g in digits()] if transform else digits()


_SETS: dict[str, _Set] = {
    "Cora": _planetoid("Cora"),
    "CiteSeer": _planetoid("CiteSeer"),
    "PubMed": _planetoid("PubMed"),
    "QM9": _Set("QM9", ("all",), _qm9),
    "MNIST": _Set("MNISTSuperpixels", ("train", "test"), _mnist),
    "CamVid-SP": _Set("CamVid-SP", ("train", "val", "test"), _camvid),
    "digits": _Set("", ("all",), _digits),
}


def _place(name: str, folder: str, root: Path | None) -> Path:
    """The folder to load from: the data's own where nothing is written, else a cached copy."""
    if not folder:
        return Path()
    if root is None:
        return _cached(f"{name}-{_digest([])}", lambda scratch: _download(name, scratch))
    source = root / folder
    files = sorted(p for p in source.rglob("*") if p.is_file() and p.parent.name != "processed")
    if not files:
        raise TransferError(f"{name}: nothing in {source}. Point root or $GNN_MUP_DATA elsewhere.")
    if name == "CamVid-SP":
        return root

    def fill(scratch: Path) -> None:
        for file in files:
            target = scratch / file.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        _process(name, scratch, f"cannot be read from {source}")

    return _cached(f"{name}-{_digest(files)}", fill)


def _download(name: str, scratch: Path) -> None:
    if name == "CamVid-SP":
        raise TransferError("CamVid-SP cannot be downloaded; set $GNN_MUP_DATA to its folder.")
    _process(name, scratch, "could not be downloaded")


def _process(name: str, place: Path, trouble: str) -> None:
    """Lets PyG write ``processed/``; whatever it raises (an unreachable server, a broken or
    missing raw file) has the same remedy."""
    folder, splits, make = _SETS[name]
    try:
        make(place, splits[0], None)
    except Exception as error:
        raise TransferError(
            f"{name} {trouble} ({type(error).__name__}: {error}). "
            f"Set $GNN_MUP_DATA to a folder that holds {folder}/raw."
        ) from error


def _digest(files: Sequence[Path]) -> str:
    """Changes when a file does, or the PyG that wrote ``processed/``."""
    from torch_geometric import __version__ as version

    stamps = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return hashlib.sha256(repr((version, stamps)).encode()).hexdigest()[:12]


def _cached(key: str, fill: Callable[[Path], None]) -> Path:
    """A folder of the cache, filled once. It appears whole or not at all, so that several
    processes may fill it at the same time: the first to finish wins."""
    final = _cache_root() / key
    if final.is_dir():
        return final
    scratch = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=final.parent))
    try:
        fill(scratch)
        with contextlib.suppress(OSError):
            scratch.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not final.is_dir():
        raise TransferError(f"{final} cannot be written. Set $GNN_MUP_CACHE to another folder.")
    return final


def _cache_root() -> Path:
    """The first of $GNN_MUP_CACHE, ~/.cache/gnn_mup and a temporary folder to be writable."""
    asked = os.environ.get("GNN_MUP_CACHE")
    fallback = Path(tempfile.gettempdir()) / f"gnn_mup-{getattr(os, 'getuid', int)()}"
    choices = [Path(asked)] if asked else [Path("~/.cache/gnn_mup"), fallback]
    for choice in choices:
        with contextlib.suppress(OSError, RuntimeError):
            path = choice.expanduser()
            path.mkdir(parents=True, exist_ok=True)
            if os.access(path, os.W_OK):
                return path
    raise TransferError(f"No cache folder: {choices} cannot be written. Set $GNN_MUP_CACHE.")

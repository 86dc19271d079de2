"""Small models in the styles people really write, each with its own expected answer beside it.

``expected.params`` says for every parameter (fnmatch patterns, the last match wins) its role, its
width type, and where it matters its fan-in and (n=) how many branches it feeds. ``by_hand`` is
the same network with the factor on its branches written out: what a transfer has to compute.
"""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import (
    DeepGCNLayer,
    FastRGCNConv,
    GATv2Conv,
    GCN2Conv,
    GCNConv,
    GENConv,
    GINConv,
    GINEConv,
    GPSConv,
    GraphConv,
    GroupAddRev,
    MessagePassing,
    NNConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
    global_add_pool,
    global_mean_pool,
)
from torch_geometric.utils import scatter, to_dense_batch

from gnn_mup.rules.plan import ParamRecord, Plan

N0, EDGE, D, L, OUT = 7, 5, 16, 4, 3
"""Features of a node and of an edge, width, layers, outputs: no two are equal."""


@dataclass(frozen=True)
class Expect:
    """What has to be found in a model, written by hand."""

    params: dict[str, str]
    depth: int = L
    scaled: int = L
    gamma: bool = False
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    inserted: bool = False
    width: int = D
    unused: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def differences(plan: Plan, expected: Expect, every: bool = True) -> list[str]:
    """Where a plan is not what was expected; ``every``: each parameter has to be named."""
    found = {
        "L": (plan.depth, expected.depth),
        "D": (plan.width, expected.width),
        "scaled": (sum(b.count for b in plan.scaled_branches()), expected.scaled),
        "gamma": (plan.gamma != 1.0, expected.gamma),
        "inserted": (plan.inserted, expected.inserted),
        "left alone": ({b.what for b in plan.branches if b.factor == 1.0}, set(expected.left)),
    }
    if every:
        unused = {name for name, record in plan.params.items() if not record.used}
        found["unused"] = (unused, set(expected.unused))
    wrong = [f"{key}: {is_}, not {wanted}" for key, (is_, wanted) in found.items() if is_ != wanted]
    # What limits the depth is a warning; here it stands beside the notes. Sizes of a head's own
    # are named wherever there are some (`test_field_sizes`).
    notes = [note for note in plan.notes if note.code != "inner-sizes"]
    limits = [w for w in plan.warnings if w.code == "width-only"]
    others = [w for w in plan.warnings if w.code not in ("width-only", "inserted")]
    for key, lines, texts in (
        ("notes", [*notes, *limits], expected.notes),
        ("warnings", others, expected.warnings),
    ):
        if bool(lines) != bool(texts) or not all(any(t in line for line in lines) for t in texts):
            wrong.append(f"{key}: {lines}, not {texts}")
    matched = set()
    for name, record in plan.params.items():
        patterns = [k for k in expected.params if fnmatch.fnmatchcase(name, k)]
        matched |= set(patterns)
        if every and not patterns:
            wrong.append(f"no expectation for {name}")
        if patterns:
            wrong += _misplaced(record, *expected.params[patterns[-1]].split())
    named = {k for k, text in expected.params.items() if not every and text != "any any"}
    return wrong + [f"{pattern} is the name of nothing" for pattern in named - matched]


def _misplaced(record: ParamRecord, role: str, kind: str, *numbers: str) -> list[str]:
    wrong = []
    if role != "any" and (record.role, record.kind) != (role, kind):
        wrong.append(f"{record.name}: {record.role} {record.kind}, not {role} {kind}")
    for number in numbers:
        value = record.branches if number.startswith("n=") else record.fan_in
        if value != float(number.removeprefix("n=")):
            wrong.append(f"{record.name}: {value:g}, not {number}")
    return wrong


def graph() -> dict[str, Tensor]:
    """Three graphs of ten nodes each, edges both ways, features of order one."""
    draw = torch.Generator().manual_seed(0)
    nodes, pairs = 30, 75
    first = torch.randint(0, 10, (2, pairs), generator=draw)
    first[1] = (first[0] + 1 + first[1] % 9) % 10
    first = first + 10 * torch.arange(3).repeat_interleave(pairs // 3)
    edge_index = torch.cat([first, first.flip(0)], dim=1).unique(dim=1)
    edges = edge_index.size(1)
    return {
        "x": torch.randn(nodes, N0, generator=draw),
        "edge_index": edge_index,
        "edge_attr": torch.randn(edges, EDGE, generator=draw),
        "edge_type": torch.randint(0, 4, (edges,), generator=draw),
        "edge_kind": torch.randint(0, 6, (edges, 2), generator=draw),
        "kind": torch.randint(0, 6, (nodes, 2), generator=draw),
        "batch": torch.arange(3).repeat_interleave(10),
    }


class Toy(nn.Module):
    """A model that knows its example and its expected answer."""

    expected: ClassVar[Expect]
    takes: ClassVar[tuple[str, ...]] = ("x", "edge_index")
    by_hand: Callable[..., Any] | None = None

    @classmethod
    def example(cls) -> tuple[Any, ...]:
        fields = graph()
        return tuple(fields[name] for name in cls.takes)

    def start(self, width: int = D) -> None:
        self.enc = nn.Linear(N0, width)
        self.dec = nn.Linear(width, OUT)


def layers(make: Callable[[], nn.Module], count: int = L) -> nn.ModuleList:
    return nn.ModuleList(make() for _ in range(count))


def mlp(width: int = D) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


ENDS = {
    "enc.weight": f"encoder data-in {N0}",
    "enc.bias": "encoder vector",
    "dec.weight": f"decoder width-out {D}",
    "dec.bias": "decoder no-width",
}
GCN = {"convs.*.lin.weight": f"residual width-to-width {D}", "convs.*.bias": "residual vector"}
NORMS = {"norms.*": "residual vector"}
MLPS = {
    "mlps.*.0.weight": f"residual width-to-width {D}",
    "mlps.*.2.weight": f"residual width-to-width {2 * D}",
    "mlps.*.bias": "residual vector",
}
GIN = {
    "convs.*.nn.0.weight": f"residual width-to-width {D}",
    "convs.*.nn.2.weight": f"residual width-to-width {2 * D}",
    "convs.*.nn.*.bias": "residual vector",
}
WIDTH_ONLY = ("transfers in width only",)


# ---- how a residual sum is written --------------------------------------------------------------


class PreNorm(Toy):
    """One activation and one dropout module shared by all layers."""

    expected = Expect({**ENDS, **GCN, **NORMS})

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.convs = layers(lambda: GCNConv(D, D))
        self.norms = layers(lambda: nn.LayerNorm(D))
        self.act, self.dropout = nn.ReLU(), nn.Dropout(0.2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.dropout(self.act(self.enc(x)))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.dropout(self.act(conv(norm(x), edge_index)))
        return self.dec(self.dropout(x))

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.act(self.enc(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + f * self.act(conv(norm(x), edge_index))
        return self.dec(x)


class PostNorm(PreNorm):
    """The branch is the left side of an in-place sum; a batch norm stands on the stream."""

    expected = Expect({**ENDS, **GCN, "norms.*": "stream vector"})

    def __init__(self) -> None:
        super().__init__()
        self.norms = layers(lambda: nn.BatchNorm1d(D))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = F.gelu(conv(x, edge_index))
            h += x
            x = norm(h)
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(x + f * F.gelu(conv(x, edge_index)))
        return self.dec(x)


class InPlace(PreNorm):
    """``x += h``, on a stream that is never copied."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = conv(F.dropout(x, p=0.3, training=self.training), edge_index)
            x += F.relu(norm(h))
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + f * F.relu(norm(conv(x, edge_index)))
        return self.dec(x)


class OGBStyle(Toy):
    """``h += h_list[layer]``: the list holds the stream, the left side is the branch."""

    expected = Expect(
        {**ENDS, **GIN, "convs.*.eps": "residual no-width", "bns.*": "residual vector"}, gamma=True
    )
    takes = ("x", "edge_index", "batch")

    def __init__(self, width: int = D, depth: int = L, residual: bool = True) -> None:
        super().__init__()
        self.start(width)
        self.convs = layers(lambda: GINConv(mlp(width), train_eps=True), depth)
        self.bns = layers(lambda: nn.BatchNorm1d(width), depth)
        self.residual, self.num_layer, self.drop_ratio = residual, depth, 0.5

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h_list = [self.enc(x)]
        for layer in range(self.num_layer):
            h = self.convs[layer](h_list[layer], edge_index)
            h = self.bns[layer](h)
            if layer == self.num_layer - 1:
                h = F.dropout(h, self.drop_ratio, training=self.training)
            else:
                h = F.dropout(F.relu(h), self.drop_ratio, training=self.training)
            if self.residual:
                h += h_list[layer]
            h_list.append(h)
        return self.dec(global_mean_pool(h_list[-1], batch))

    def by_hand(self, x: Tensor, edge_index: Tensor, batch: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for layer in range(self.num_layer):
            h = self.bns[layer](self.convs[layer](x, edge_index))
            x = x + f * (h if layer == self.num_layer - 1 else F.relu(h))
        return self.dec(global_mean_pool(x, batch))


class FunctionForms(PreNorm):
    """torch.add, Tensor.add, add_, a subtraction: one layer each."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        x = torch.add(x, self.convs[0](self.norms[0](x), edge_index).relu(), alpha=2)
        x = self.convs[1](self.norms[1](x), edge_index).relu().add(x)
        h = self.norms[2](self.convs[2](self.dropout(x), edge_index))
        x = x.add_(h.relu())
        x = x - self.convs[3](self.norms[3](x), edge_index).tanh()
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        x = x + 2 * f * self.convs[0](self.norms[0](x), edge_index).relu()
        x = x + f * self.convs[1](self.norms[1](x), edge_index).relu()
        x = x + f * self.norms[2](self.convs[2](x, edge_index)).relu()
        x = x - f * self.convs[3](self.norms[3](x), edge_index).tanh()
        return self.dec(x)


class SumOfList(Toy):
    """``sum([...])``: three summands, two of them branches."""

    expected = Expect({**ENDS, **GCN, **MLPS}, scaled=2 * L)

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.convs, self.mlps = layers(lambda: GCNConv(D, D)), layers(mlp)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, net in zip(self.convs, self.mlps, strict=True):
            x = sum([x, F.gelu(conv(x, edge_index)), net(x)])
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, net in zip(self.convs, self.mlps, strict=True):
            x = x + f * F.gelu(conv(x, edge_index)) + f * net(x)
        return self.dec(x)


class Parallel(SumOfList):
    """``x + f(x) + g(x)``: two branches of one step."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, net in zip(self.convs, self.mlps, strict=True):
            x = x + F.gelu(conv(x, edge_index)) + net(x)
        return self.dec(x)


class ParallelInside(SumOfList):
    """``x + (f(x) + g(x))``: the two are one summand."""

    expected = Expect({**ENDS, **GCN, **MLPS})

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, net in zip(self.convs, self.mlps, strict=True):
            h = F.gelu(conv(x, edge_index)) + net(x)
            x = h + x
        return self.dec(x)


class TwoSteps(SumOfList):
    """Message passing, then an MLP, each with its own skip: one layer."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, net in zip(self.convs, self.mlps, strict=True):
            x = F.gelu(conv(x, edge_index)) + x
            x = x + net(x)
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, net in zip(self.convs, self.mlps, strict=True):
            x = x + f * F.gelu(conv(x, edge_index))
            x = x + f * net(x)
        return self.dec(x)


class BenchmarkingStyle(nn.Module):
    """A layer that keeps ``h_in`` and adds it at its end, if the sizes allow."""

    def __init__(self, width: int = D, norm: bool = True, residual: bool = True) -> None:
        super().__init__()
        self.conv = SAGEConv(width, width)
        self.norm = nn.BatchNorm1d(width) if norm else None
        self.residual = residual and self.conv.in_channels == self.conv.out_channels

    def forward(net, h: Tensor, edge_index: Tensor) -> Tensor:
        h_in = h
        h = net.conv(h, edge_index)
        if net.norm is not None:
            h = net.norm(h)
        h = F.relu(h)
        if net.residual:
            h = h_in + h
        return h


class Blocks(Toy):
    """Blocks of their own, whose forward does not call its first argument self."""

    expected = Expect(
        {
            **ENDS,
            "blocks.*.conv.lin_[lr].weight": f"residual width-to-width {D}",
            "blocks.*.conv.lin_l.bias": "residual vector",
            "blocks.*.norm.*": "residual vector",
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.blocks = layers(BenchmarkingStyle)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for block in self.blocks:
            x = block(x, edge_index)
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for block in self.blocks:
            x = x + f * F.relu(block.norm(block.conv(x, edge_index)))
        return self.dec(x)


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return wrapper


class Projected(Toy):
    """The first layer changes the width, so its skip goes through a weight: an encoder."""

    expected = Expect(
        {
            "convs.*.lin.weight": f"residual width-to-width {D}",
            "convs.0.lin.weight": f"residual data-in {N0}",
            "convs.*.bias": "residual vector",
            "skips.0.weight": f"encoder data-in {N0}",
            "skips.0.bias": "encoder vector",
            "dec.weight": f"decoder width-out {D}",
            "dec.bias": "decoder no-width",
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(GCNConv(D if i else N0, D) for i in range(L))
        self.skips = nn.ModuleList(nn.Identity() if i else nn.Linear(N0, D) for i in range(L))
        self.dec = nn.Linear(D, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, skip in zip(self.convs, self.skips, strict=True):
            x = F.relu(conv(x, edge_index)) + skip(x)
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        for conv, skip in zip(self.convs, self.skips, strict=True):
            x = f * F.relu(conv(x, edge_index)) + skip(x)
        return self.dec(x)


class PostActivation(PreNorm):
    """``relu(norm(x + h))``, the norm written by hand: gain and stream in one product."""

    expected = Expect({**ENDS, **GCN, "gains.*": "stream vector"})

    def __init__(self) -> None:
        super().__init__()
        del self.norms
        self.gains = nn.ParameterList(torch.ones(D) for _ in range(L))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, gain in zip(self.convs, self.gains, strict=True):
            x = x + conv(x, edge_index)
            x = F.relu(gain * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, gain in zip(self.convs, self.gains, strict=True):
            x = x + f * conv(x, edge_index)
            x = F.relu(gain * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return self.dec(x)


class StochasticDepth(PreNorm):
    """A branch that is dropped as a whole for some nodes."""

    def drop_path(self, h: Tensor) -> Tensor:
        if not self.training:
            return h
        return h / 0.8 * h.new_empty(h.size(0), 1).bernoulli_(0.8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.act(self.enc(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.drop_path(self.act(conv(norm(x), edge_index)))
        return self.dec(x)


class Decorated(PreNorm):
    """A decorated forward, and a function inside it that adds."""

    @counted
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        def block(x: Tensor, i: int) -> Tensor:
            return x + self.act(self.convs[i](self.norms[i](x), edge_index))

        x = self.act(self.enc(x))
        for i in range(len(self.convs)):
            x = block(x, i)
        return self.dec(x)


class ResidualGCNConv(GCNConv):
    """A layer that adds to what its parent computes."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x + super().forward(x, edge_index).relu()


class WithSuper(Toy):
    """``super()`` inside the forward that has to be edited."""

    expected = Expect({**ENDS, **GCN})

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.convs = layers(lambda: ResidualGCNConv(D, D))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + f * GCNConv.forward(conv, x, edge_index).relu()
        return self.dec(x)


class ReZero(PreNorm):
    """A learned scalar, or a gain for each channel, on each branch."""

    expected = Expect(
        {**ENDS, **GCN, **NORMS, "scales.*": "residual no-width", "scales.3": "residual vector"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(
            [*(nn.Parameter(torch.full((), 0.5)) for _ in range(3)), nn.Parameter(torch.ones(D))]
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm, scale in zip(self.convs, self.norms, self.scales, strict=True):
            x = x + scale * F.silu(conv(norm(x), edge_index))
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, norm, scale in zip(self.convs, self.norms, self.scales, strict=True):
            x = x + f * scale * F.silu(conv(norm(x), edge_index))
        return self.dec(x)


class ResidualMLP(Toy):
    """No message passing at all: blocks in an nn.Sequential, L is the number of sums."""

    class Residual(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) + x

    expected = Expect(
        {
            "net.0.weight": f"encoder data-in {N0}",
            "net.0.bias": "encoder vector",
            "net.[1-4].body.0.weight": f"residual width-to-width {D}",
            "net.[1-4].body.2.weight": f"residual width-to-width {2 * D}",
            "net.[1-4].body.*.bias": "residual vector",
            "net.5.weight": f"decoder width-out {D}",
            "net.5.bias": "decoder no-width",
        }
    )
    takes = ("x",)

    def __init__(self) -> None:
        super().__init__()
        blocks = [self.Residual(mlp()) for _ in range(L)]
        self.net = nn.Sequential(nn.Linear(N0, D), *blocks, nn.Linear(D, OUT))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def by_hand(self, x: Tensor, f: float) -> Tensor:
        x = self.net[0](x)
        for block in self.net[1:-1]:
            x = x + f * block.body(x)
        return self.net[-1](x)


class SequentialBlocks(Toy):
    """PyG's Sequential inside the branch; its forward is generated code."""

    expected = Expect(
        {
            **ENDS,
            "blocks.*.weight": f"residual width-to-width {D}",
            "blocks.*.bias": "residual vector",
            "blocks.*.module_1.*": "residual vector",
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.blocks = layers(
            lambda: pyg.Sequential(
                "x, edge_index",
                [
                    (GCNConv(D, D), "x, edge_index -> h"),
                    (nn.BatchNorm1d(D), "h -> h"),
                    nn.ReLU(),
                    (nn.Linear(D, D), "h -> h"),
                ],
            )
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for block in self.blocks:
            x = block(x, edge_index) + x
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for block in self.blocks:
            x = x + f * block(x, edge_index)
        return self.dec(x)


class Checkpointed(PreNorm):
    """Activation checkpointing round each block."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.act(self.enc(x))
        for i in range(len(self.convs)):
            x = torch.utils.checkpoint.checkpoint(self.block, i, x, edge_index, use_reentrant=False)
        return self.dec(x)

    def block(self, i: int, x: Tensor, edge_index: Tensor) -> Tensor:
        return x + self.act(self.convs[i](self.norms[i](x), edge_index))


# ---- what is passed round -----------------------------------------------------------------------


class GraphGymLayer(nn.Module):
    """Takes a batch, writes into it, hands it back."""

    def __init__(self, width: int = D) -> None:
        super().__init__()
        self.layer = GCNConv(width, width)
        self.post_layer = nn.Sequential(nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, batch: Any) -> Any:
        x_in = batch.x
        batch.x = self.layer(batch.x, batch.edge_index)
        batch.x = self.post_layer(batch.x)
        batch.x = x_in + batch.x
        return batch


class GraphGymStyle(Toy):
    """A data object is passed through and mutated; the output is a tuple."""

    expected = Expect(
        {
            **ENDS,
            "layers.*.layer.lin.weight": f"residual width-to-width {D}",
            "layers.*.bias": "residual vector",
            "layers.*.post_layer.*": "residual vector",
        }
    )

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.layers = nn.Sequential(*(GraphGymLayer(width) for _ in range(depth)))

    @classmethod
    def example(cls) -> tuple[Any, ...]:
        fields = graph()
        parts = [
            Data(
                x=fields["x"][10 * i : 10 * i + 10],
                edge_index=fields["edge_index"][:, fields["edge_index"][0] // 10 == i] - 10 * i,
                y=torch.zeros(1, OUT),
            )
            for i in range(3)
        ]
        return (Batch.from_data_list(parts),)

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        batch.x = self.enc(batch.x)
        batch = self.layers(batch)
        batch.graph_feature = self.dec(global_mean_pool(batch.x, batch.batch))
        return batch.graph_feature, batch.y

    def by_hand(self, batch: Any, f: float) -> tuple[Tensor, Tensor]:
        x = self.enc(batch.x)
        for layer in self.layers:
            x = x + f * layer.post_layer(layer.layer(x, batch.edge_index))
        return self.dec(global_mean_pool(x, batch.batch)), batch.y


class AugmentedAttribute(GraphGymStyle):
    """``batch.x += h`` on an attribute."""

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        batch.x = self.enc(batch.x)
        for layer in self.layers:
            x = F.dropout(batch.x, p=0.1, training=self.training)
            batch.x += layer.post_layer(layer.layer(x, batch.edge_index))
        return self.dec(global_mean_pool(batch.x, batch.batch)), batch.y


class GatedGCNLayer(nn.Module):
    """Nodes and edges each on a stream of their own, passed as a tuple."""

    def __init__(self, width: int = D) -> None:
        super().__init__()
        self.A, self.B, self.C, self.U, self.V = (nn.Linear(width, width) for _ in range(5))
        self.norm_x, self.norm_e = nn.BatchNorm1d(width), nn.BatchNorm1d(width)

    def forward(self, state: tuple[Tensor, Tensor], edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x, e = state
        src, dst = edge_index
        e_hat = self.A(x)[dst] + self.B(x)[src] + self.C(e)
        sigma = torch.sigmoid(e_hat)
        total = scatter(sigma * self.V(x)[src], dst, 0, x.size(0), reduce="sum")
        weight = scatter(sigma, dst, 0, x.size(0), reduce="sum")
        h = self.U(x) + total / (weight + 1e-6)
        return x + F.relu(self.norm_x(h)), e + F.relu(self.norm_e(e_hat))


class GatedGCN(Toy):
    """Two streams. The edge encoder reaches the output only through the branches of the nodes."""

    expected = Expect(
        {
            **ENDS,
            "edge_enc.weight": f"residual data-in {EDGE} n={L}",
            "edge_enc.bias": f"residual vector n={L}",
            "layers.*.[ABCUV].weight": f"residual width-to-width {D}",
            "layers.*.[ABCUV].bias": "residual vector",
            "layers.*.norm_*": "residual vector",
            "layers.3.norm_e.*": "any any",  # feeds nothing: the last edges are thrown away
        },
        scaled=2 * L,
    )
    takes = ("x", "edge_index", "edge_attr")

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.edge_enc = nn.Linear(EDGE, width)
        self.layers = layers(lambda: GatedGCNLayer(width), depth)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        state = self.enc(x), self.edge_enc(edge_attr)
        for layer in self.layers:
            state = layer(state, edge_index)
        return self.dec(state[0])


class MeshGraphNet(Toy):
    """Encode, process, decode: MLPs on concatenated ends of edges, sums by hand, two streams."""

    expected = Expect(
        {
            **ENDS,
            "edge_enc.weight": f"residual data-in {EDGE} n={L}",
            "edge_enc.bias": f"residual vector n={L}",
            "edge_mlps.*.0.weight": f"residual width-to-width {3 * D}",
            "node_mlps.*.0.weight": f"residual width-to-width {2 * D}",
            "*_mlps.*.2.weight": f"residual width-to-width {D}",
            "*_mlps.*.3.weight": "residual vector",
            "*_mlps.*.bias": "residual vector",
        },
        scaled=2 * L,
        gamma=True,
    )
    takes = ("x", "edge_index", "edge_attr")

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.edge_enc = nn.Linear(EDGE, width)
        self.edge_mlps = layers(lambda: self.normed_mlp(3 * width, width), depth)
        self.node_mlps = layers(lambda: self.normed_mlp(2 * width, width), depth)

    def normed_mlp(self, size: int, width: int) -> nn.Sequential:
        net = (nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width))
        return nn.Sequential(*net)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, e = self.enc(x), self.edge_enc(edge_attr)
        src, dst = edge_index
        for edge_mlp, node_mlp in zip(self.edge_mlps, self.node_mlps, strict=True):
            message = edge_mlp(torch.cat([x[src], x[dst], e], dim=-1))
            total = scatter(message, dst, dim=0, dim_size=x.size(0), reduce="sum")
            x = x + node_mlp(torch.cat([x, total], dim=-1))
            e = e + message
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, f: float) -> Tensor:
        x, e = self.enc(x), self.edge_enc(edge_attr)
        src, dst = edge_index
        for edge_mlp, node_mlp in zip(self.edge_mlps, self.node_mlps, strict=True):
            message = edge_mlp(torch.cat([x[src], x[dst], e], dim=-1))
            total = torch.zeros_like(x).index_add(0, dst, message)
            x = x + f * node_mlp(torch.cat([x, total], dim=-1))
            e = e + f * message
        return self.dec(x)


class DictOfTypes(Toy):
    """Heterogeneous: dicts of features, sums in a comprehension."""

    expected = Expect(
        {
            **ENDS,
            "enc_b.weight": f"residual data-in {N0} n={L}",
            "enc_b.bias": f"residual vector n={L}",
            "layers.*.weight": f"residual width-to-width {D}",
            "layers.*.bias": "residual vector",
            "layers.3.b.*": "any any",  # nothing reads type b after the last layer
        },
        scaled=2 * L,
    )
    takes = ("x", "edge_index")

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.enc_b = nn.Linear(N0, D)
        self.layers = layers(
            lambda: nn.ModuleDict({"a": SAGEConv((D, D), D), "b": SAGEConv((D, D), D)})
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x_dict = {"a": self.enc(x), "b": self.enc_b(x)}
        other = {"a": "b", "b": "a"}
        for layer in self.layers:
            out = {k: layer[k]((x_dict[other[k]], x_dict[k]), edge_index) for k in x_dict}
            x_dict = {k: x_dict[k] + F.relu(out[k]) for k in x_dict}
        return self.dec(x_dict["a"])


# ---- layers of PyG ------------------------------------------------------------------------------


class GPS(Toy):
    """``2x + f + g`` in PyG's own layer, with three norms on the stream."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.conv.nn.0.weight": f"residual width-to-width {D}",
            "convs.*.conv.nn.2.weight": f"residual width-to-width {2 * D}",
            "convs.*.conv.nn.*.bias": "residual vector",
            "convs.*.attn.*weight": f"residual width-to-width {D}",
            "convs.*.attn.*bias": "residual vector",
            "convs.*.mlp.0.weight": f"residual width-to-width {D}",
            "convs.*.mlp.3.weight": f"residual width-to-width {2 * D}",
            "convs.*.mlp.*.bias": "residual vector",
            "convs.*.norm?.*": "stream vector",
        },
        scaled=3 * L,
        gamma=True,
    )
    takes = ("x", "edge_index", "batch")
    norm: ClassVar[str | None] = "batch_norm"

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.convs = layers(
            lambda: GPSConv(width, GINConv(mlp(width)), heads=2, norm=self.norm), depth
        )

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = conv(x, edge_index, batch)
        return self.dec(global_mean_pool(x, batch))

    def by_hand(self, x: Tensor, edge_index: Tensor, batch: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for layer in self.convs:
            norms = [n or nn.Identity() for n in (layer.norm1, layer.norm2, layer.norm3)]
            local = norms[0](x + f * layer.conv(x, edge_index))
            dense, mask = to_dense_batch(x, batch)
            seen = layer.attn(dense, dense, dense, key_padding_mask=~mask, need_weights=False)[0]
            out = local + norms[1](x + f * seen[mask])
            if layer.norm1 is None:
                out = out / 2
            x = norms[2](out + f * layer.mlp(out))
        return self.dec(global_mean_pool(x, batch))


class GPSWithoutNorm(GPS):
    """Without norms the doubled stream is divided by two."""

    expected = Expect(
        {k: v for k, v in GPS.expected.params.items() if "norm" not in k},
        scaled=4 * L,
        gamma=True,
    )
    norm = None


class DeeperGCN(Toy):
    """``res+``: norm, activation, dropout, convolution, sum."""

    expected = Expect(
        {
            **ENDS,
            "layers.*.conv.mlp.0.weight": f"residual width-to-width {D}",
            "layers.*.conv.mlp.4.weight": f"residual width-to-width {2 * D}",
            "layers.*.conv.mlp.1.*": "residual vector",
            "layers.*.norm.*": "residual vector",
            "layers.*.conv.aggr_module.t": "residual no-width",
            "layers.*.bias": "residual vector",
        }
    )
    block: ClassVar[str] = "res+"

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.layers = layers(
            lambda: DeepGCNLayer(
                GENConv(width, width, learn_t=True, bias=True),
                nn.LayerNorm(width),
                nn.ReLU(inplace=True),
                block=self.block,
                dropout=0.1,
            ),
            depth,
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + f * layer.conv(layer.act(layer.norm(x)), edge_index)
        return self.dec(x)


class DeeperRes(DeeperGCN):
    """``res``: the branch ends in norm and activation."""

    block = "res"

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + f * layer.act(layer.norm(layer.conv(x, edge_index)))
        return self.dec(x)


class DeeperPlain(DeeperRes):
    """``plain``: no residual, so one is put round convolution, norm, activation and dropout."""

    expected = Expect(DeeperGCN.expected.params, inserted=True)
    block = "plain"


class GCNII(Toy):
    """Initial residual with constants of its own: no branch, nothing to scale."""

    expected = Expect(
        {**ENDS, "convs.*.weight1": f"hidden width-to-width {D}"},
        depth=1,
        scaled=0,
        left=(
            "initial residual",
            *(f"scaled skip (coefficient {1 - math.log(0.5 / (i + 1) + 1):.3g})" for i in range(L)),
        ),
        notes=WIDTH_ONLY,
    )

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.convs = nn.ModuleList(GCN2Conv(width, 0.1, 0.5, i + 1) for i in range(depth))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = x0 = self.enc(x).relu()
        for conv in self.convs:
            x = F.dropout(x, 0.5, self.training)
            x = conv(x, x0, edge_index).relu()
        return self.dec(x)


class InitialAndStream(PreNorm):
    """A stream, and the first features added to it in every layer: they are a branch too."""

    expected = Expect({**ENDS, **GCN, **NORMS}, scaled=2 * L)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = x0 = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.act(conv(norm(x), edge_index)) + 0.1 * x0
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = x0 = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + f * self.act(conv(norm(x), edge_index)) + f * 0.1 * x0
        return self.dec(x)


class InitialOnly(PreNorm):
    """Plain layers, and the first features added in every layer."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.lin.weight": f"hidden width-to-width {D}",
            "convs.*.bias": "hidden vector",
            "norms.*": "hidden vector",
            "norms.0.*": "encoder vector",
        },
        depth=1,
        scaled=0,
        left=("initial residual",),
        notes=WIDTH_ONLY,
    )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = x0 = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = self.act(conv(norm(x), edge_index)) + x0
        return self.dec(x)

    by_hand = None


class JumpingSum(PreNorm):
    """A residual stream whose states are summed over all layers, as OGB does it."""

    expected = Expect({**ENDS, **GCN, **NORMS}, scaled=L + L + 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h_list = [self.enc(x)]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = self.act(conv(norm(h_list[-1]), edge_index))
            h_list.append(h + h_list[-1])
        out: Any = 0
        for h in h_list:
            out += h
        return self.dec(out)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        out = f * x
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + f * self.act(conv(norm(x), edge_index))
            out = out + f * x
        return self.dec(out)


class JumpingSumOfStates(JumpingSum):
    """The same with the built-in sum."""

    expected = Expect({**ENDS, **GCN, **NORMS}, scaled=L + L)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        states = [self.enc(x)]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            states += [states[-1] + self.act(conv(norm(states[-1]), edge_index))]
        return self.dec(sum(states))


class JumpingStack(JumpingSum):
    """The same with torch.stack."""

    expected = Expect({**ENDS, **GCN, **NORMS}, scaled=L + 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        states = [self.enc(x)]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            states += [states[-1] + self.act(conv(norm(states[-1]), edge_index))]
        return self.dec(torch.stack(states, dim=-1).sum(dim=-1))


class JumpingCat(PreNorm):
    """Jumping knowledge by concatenation: the decoder's fan-in grows with depth."""

    expected = Expect({**ENDS, **GCN, **NORMS, "dec.weight": f"decoder width-out {L * D}"})

    def __init__(self) -> None:
        super().__init__()
        self.dec = nn.Linear(L * D, OUT)
        self.jump = pyg.JumpingKnowledge("cat")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, xs = self.enc(x), []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.act(conv(norm(x), edge_index))
            xs += [x]
        return self.dec(self.jump(xs))

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x, xs = self.enc(x), []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + f * self.act(conv(norm(x), edge_index))
            xs += [x]
        return self.dec(torch.cat(xs, dim=-1))


class JumpingMean(PreNorm):
    """The mean over the layers is normalised already."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, xs = self.enc(x), []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = self.act(conv(norm(x), edge_index)) + x
            xs.append(x)
        return self.dec(torch.stack(xs, dim=0).mean(dim=0))

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x, xs = self.enc(x), []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + f * self.act(conv(norm(x), edge_index))
            xs.append(x)
        return self.dec(sum(xs) / L)


class LearnedSkip(PreNorm):
    """``conv(x) + lin(x)``: a projection instead of the identity; nothing is inserted either."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.lin.weight": f"hidden width-to-width {D}",
            "convs.*.bias": "hidden vector",
            "norms.*": "hidden vector",
            "lins.*.weight": f"hidden width-to-width {D}",
            "lins.*.bias": "hidden vector",
        },
        depth=1,
        scaled=0,
        left=("learned skip",),
        notes=WIDTH_ONLY,
    )

    def __init__(self) -> None:
        super().__init__()
        self.lins = layers(lambda: nn.Linear(D, D))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, lin, norm in zip(self.convs, self.lins, self.norms, strict=True):
            x = F.relu(norm(conv(x, edge_index) + lin(x)))
        return self.dec(x)

    by_hand = None


class LongSkip(PreNorm):
    """A skip round the whole stack: not one of its layers."""

    expected = Expect({**ENDS, **GCN, **NORMS}, left=("long skip",))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = x0 = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.act(conv(norm(x), edge_index))
        x = x0 + F.relu(x)
        return self.dec(x)

    by_hand = None


class ScaledSkip(PreNorm):
    """``(x + h) / sqrt(2)``: a skip with a constant of its own, in every layer the same."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.lin.weight": f"hidden width-to-width {D}",
            "convs.*.bias": "hidden vector",
            "norms.*": "hidden vector",
            "norms.0.*": "encoder vector",
        },
        depth=1,
        scaled=0,
        left=("scaled skip (coefficient 0.707)",),
        notes=WIDTH_ONLY,
    )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = (x + F.relu(conv(norm(x), edge_index))) * 0.5**0.5
        return self.dec(x)

    by_hand = None


class GatedUpdate(Toy):
    """A GRU carries the state."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.lin.weight": f"hidden width-to-width {D}",
            "convs.*.bias": "hidden vector",
            "gru.weight_*": f"hidden width-to-width {D}",
            "gru.bias_*": "hidden vector",
        },
        depth=1,
        scaled=0,
        left=("gate",),
        notes=(*WIDTH_ONLY, "no depth limit"),
    )

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.convs = layers(lambda: GCNConv(width, width), depth)
        self.gru = nn.GRUCell(width, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = self.gru(F.relu(conv(x, edge_index)), x)
        return self.dec(x)


class Highway(PreNorm):
    """``g * h + (1 - g) * x``: a gate by hand."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.lin.weight": f"hidden width-to-width {D}",
            "convs.*.bias": "hidden vector",
            "norms.*": "hidden vector",
            "gates.*.weight": f"hidden width-to-width {D}",
            "gates.*.bias": "hidden vector",
        },
        depth=1,
        scaled=0,
        left=("gate",),
        notes=WIDTH_ONLY,
    )

    def __init__(self) -> None:
        super().__init__()
        self.gates = layers(lambda: nn.Linear(D, D))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm, gate in zip(self.convs, self.norms, self.gates, strict=True):
            h = F.relu(norm(conv(x, edge_index)))
            g = torch.sigmoid(gate(x))
            x = g * h + (1 - g) * x
        return self.dec(x)

    by_hand = None


class VirtualNode(Toy):
    """OGB's: one state a graph, added to all its nodes in every layer, with a stream of its own."""

    expected = Expect(
        {
            **ENDS,
            **GIN,
            "bns.*": "residual vector",
            "virtual.weight": f"residual data-in 1 n={L}",
            "vn_mlps.*.0.weight": f"residual width-to-width {D}",
            "vn_mlps.*.2.weight": f"residual width-to-width {2 * D}",
            "vn_mlps.*.bias": "residual vector",
        },
        scaled=L + L + L - 1,
        gamma=True,
    )
    takes = ("x", "edge_index", "batch")

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.virtual = nn.Embedding(1, width)
        self.convs = layers(lambda: GINConv(mlp(width)), depth)
        self.bns = layers(lambda: nn.BatchNorm1d(width), depth)
        self.vn_mlps = layers(lambda: mlp(width), depth - 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        state = self.virtual(
            torch.zeros(int(batch[-1]) + 1, dtype=edge_index.dtype, device=edge_index.device)
        )
        h_list = [self.enc(x)]
        for layer in range(len(self.convs)):
            h_list[layer] = h_list[layer] + state[batch]
            h = self.bns[layer](self.convs[layer](h_list[layer], edge_index))
            h = F.dropout(F.relu(h), 0.5, training=self.training)
            h += h_list[layer]
            h_list.append(h)
            if layer < len(self.vn_mlps):
                pooled = global_mean_pool(h_list[layer], batch) + state
                state = state + F.dropout(self.vn_mlps[layer](pooled), 0.5, training=self.training)
        return self.dec(global_mean_pool(h_list[-1], batch))

    def by_hand(self, x: Tensor, edge_index: Tensor, batch: Tensor, f: float) -> Tensor:
        state = self.virtual(torch.zeros(3, dtype=torch.long))
        x = self.enc(x)
        for layer in range(len(self.convs)):
            x = x + f * state[batch]
            h = F.relu(self.bns[layer](self.convs[layer](x, edge_index)))
            if layer < len(self.vn_mlps):
                pooled = global_mean_pool(x, batch) + state
                state = state + f * self.vn_mlps[layer](pooled)
            x = x + f * h
        return self.dec(global_mean_pool(x, batch))


class VirtualNodeWrittenOut(VirtualNode):
    """The same without a loop: no expression runs twice."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        a, b, c = self.vn_mlps
        state = self.virtual(batch.new_zeros(3))
        x = self.enc(x)
        x = x + state[batch]
        first = global_mean_pool(x, batch) + state
        x = x + self.layer(0, x, edge_index)
        state = state + a(first)
        x = x + state[batch]
        second = global_mean_pool(x, batch) + state
        x = x + self.layer(1, x, edge_index)
        state = state + b(second)
        x = x + state[batch]
        third = global_mean_pool(x, batch) + state
        x = x + self.layer(2, x, edge_index)
        state = state + c(third)
        x = x + state[batch]
        x = x + self.layer(3, x, edge_index)
        return self.dec(global_mean_pool(x, batch))

    def layer(self, i: int, x: Tensor, edge_index: Tensor) -> Tensor:
        return F.relu(self.bns[i](self.convs[i](x, edge_index)))


class VirtualNodeMadeAnew(VirtualNode):
    """deep_gcns_torch's: every layer's state comes out of an MLP, and joins the branch's input.
    What is pooled is added to the state before that, which makes no stream."""

    expected = Expect(
        VirtualNode.expected.params
        | {
            "convs.0.nn.*.weight": "hidden width-to-width",
            "convs.0.nn.*.bias": "hidden vector",
            "bns.0.*": f"residual vector n={L - 1}",
            "bns.1.*": f"residual vector n={L - 2}",
            "bns.2.*": f"residual vector n={L - 3}",
            "bns.3.*": "hidden vector",
            "virtual.weight": "encoder data-in 1",
            "vn_mlps.0.*.weight": f"residual width-to-width n={L - 1}",
            "vn_mlps.2.*.weight": "residual width-to-width n=1",
        },
        depth=L - 1,
        scaled=L - 1,
        gamma=True,
        left=("skip into a weight",),
        notes=("net(global_mean_pool(h, batch) + state)': what is summed up", *WIDTH_ONLY),
    )

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.by_hand(x, edge_index, batch, 1.0)

    def by_hand(self, x: Tensor, edge_index: Tensor, batch: Tensor, f: float) -> Tensor:
        state = self.virtual(batch.new_zeros(3))
        x = self.convs[0](self.enc(x) + state[batch], edge_index)
        for i, net in enumerate(self.vn_mlps):
            h = F.relu(self.bns[i](x))
            state = net(global_mean_pool(h, batch) + state)
            h = h + state[batch]
            x = x + f * self.convs[i + 1](h, edge_index)
        return self.dec(global_mean_pool(self.bns[-1](x), batch))


class MatrixOnTheStream(PreNorm):
    """A projection behind every sum: each layer's identity ends there, so nothing is scaled."""

    expected = Expect(
        {k: v.replace("residual", "hidden") for k, v in PreNorm.expected.params.items()}
        | {"lins.*.weight": f"hidden width-to-width {D}", "norms.0.*": "encoder vector"},
        depth=1,
        scaled=0,
        left=("skip into a weight",),
        notes=("goes through a weight before the next layer", *WIDTH_ONLY),
    )

    def __init__(self) -> None:
        super().__init__()
        self.lins = layers(lambda: nn.Linear(D, D, bias=False))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.by_hand(x, edge_index, 1.0)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, norm, lin in zip(self.convs, self.norms, self.lins, strict=True):
            x = lin(x + f * F.relu(conv(norm(x), edge_index)))
        return self.dec(x)


class ChangingConstants(PreNorm):
    """A number that depends on the layer's place, as in GCNII's variant with a stream."""

    expected = Expect(
        PreNorm.expected.params,
        notes=("changes from layer to layer (0.405, 0.223, 0.154, 0.118)", *WIDTH_ONLY),
    )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.by_hand(x, edge_index, 1.0)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = x + f * math.log(1 + 0.5 / (i + 1)) * F.relu(conv(norm(x), edge_index))
        return self.dec(x)


class InitialBeside(PreNorm):
    """SGFormer's large variant: one part has a stream, the other an initial residual."""

    expected = Expect(
        PreNorm.expected.params
        | {
            "other.weight": f"encoder data-in {N0}",
            "others.*.lin.weight": f"hidden width-to-width {D}",
            "others.*.bias": "hidden vector",
        },
        left=("initial residual",),
        notes=("every layer of this part", *WIDTH_ONLY),
    )

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(N0, D, bias=False)
        self.others = layers(lambda: GCNConv(D, D))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.by_hand(x, edge_index, 1.0)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        y = start = self.other(x)
        x = self.enc(x)
        for conv in self.others:
            y = F.relu(conv(y, edge_index)) + start
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + f * F.relu(conv(norm(x), edge_index))
        return self.dec(x + y)


class LearnedMixture(PreNorm):
    """A gate that is one learned number a layer."""

    expected = Expect(
        {k: v for k, v in Highway.expected.params.items() if not k.startswith("gates")}
        | {"mix": "hidden no-width"},
        depth=1,
        scaled=0,
        left=("gate",),
        notes=WIDTH_ONLY,
    )

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.zeros(L))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            a = self.mix[i].sigmoid()
            x = a * F.relu(norm(conv(x, edge_index))) + (1 - a) * x
        return self.dec(x)

    by_hand = None


# ---- edges, categories, attention, relations ----------------------------------------------------


class SharedEdgeEncoder(Toy):
    """One edge encoder for all layers."""

    expected = Expect(
        {
            **ENDS,
            **GIN,
            "edge_enc.weight": f"residual data-in {EDGE} n={L}",
            "edge_enc.bias": f"residual vector n={L}",
        },
        gamma=True,
    )
    takes = ("x", "edge_index", "edge_attr")

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.edge_enc = nn.Linear(EDGE, width)
        self.convs = layers(lambda: GINEConv(mlp(width)), depth)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, e = self.enc(x), self.edge_enc(edge_attr)
        for conv in self.convs:
            x = x + conv(x, edge_index, e).relu()
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, f: float) -> Tensor:
        x, e = self.enc(x), self.edge_enc(edge_attr)
        for conv in self.convs:
            x = x + f * conv(x, edge_index, e).relu()
        return self.dec(x)


class OwnEdgeEncoders(SharedEdgeEncoder):
    """An edge encoder inside each layer."""

    expected = Expect(
        {
            **ENDS,
            **GIN,
            "convs.*.lin.weight": f"residual data-in {EDGE} n=1",
            "convs.*.lin.bias": "residual vector n=1",
        },
        gamma=True,
    )

    def __init__(self) -> None:
        super().__init__()
        del self.edge_enc
        self.convs = layers(lambda: GINEConv(mlp(), edge_dim=EDGE))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index, edge_attr).relu()
        return self.dec(x)

    by_hand = None


class CategoryConv(MessagePassing):
    """OGB's GIN layer: bond embeddings inside, ``(1 + eps) x`` and the MLP outside."""

    def __init__(self, width: int = D) -> None:
        super().__init__(aggr="add")
        self.mlp = mlp(width)
        self.eps = nn.Parameter(torch.zeros(1))
        self.bond_encoder = nn.ModuleList(nn.Embedding(6, width) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        embedding: Any = 0
        for i, table in enumerate(self.bond_encoder):
            embedding = embedding + table(edge_attr[:, i])
        out = self.propagate(edge_index, x=x, edge_attr=embedding)
        return self.mlp((1 + self.eps) * x + out)

    def message(self, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        return F.relu(x_j + edge_attr)


class Categories(Toy):
    """Atoms and bonds as categories: sums of embeddings, no dense features at all."""

    expected = Expect(
        {
            "atoms.*": "encoder data-in 1",
            "convs.*.mlp.0.weight": f"residual width-to-width {D}",
            "convs.*.mlp.2.weight": f"residual width-to-width {2 * D}",
            "convs.*.mlp.*.bias": "residual vector",
            "convs.*.eps": "residual no-width",
            "convs.*.bond_encoder.*": "residual data-in 1 n=1",
            "dec.weight": f"decoder width-out {D}",
            "dec.bias": "decoder no-width",
        },
        gamma=True,
        warnings=("sum pooling over 10 nodes",),
    )
    takes = ("kind", "edge_index", "edge_kind", "batch")

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.atoms = nn.ModuleList(nn.Embedding(6, width) for _ in range(2))
        self.convs = layers(lambda: CategoryConv(width), depth)
        self.dec = nn.Linear(width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        h = sum(table(x[:, i]) for i, table in enumerate(self.atoms))
        for conv in self.convs:
            h = F.relu(conv(h, edge_index, edge_attr)) + h
        return self.dec(global_add_pool(h, batch))

    def by_hand(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor, f: float
    ) -> Tensor:
        h = sum(table(x[:, i]) for i, table in enumerate(self.atoms))
        for conv in self.convs:
            h = h + f * F.relu(conv(h, edge_index, edge_attr))
        return self.dec(global_add_pool(h, batch))


class Attention(Toy):
    """GATv2 with two heads and edge features; attention vectors are (1, heads, D / heads)."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.lin_[lr].weight": f"residual width-to-width {D}",
            "convs.*.lin_[lr].bias": "residual vector",
            "convs.*.lin_edge.weight": f"residual data-in {EDGE}",
            "convs.*.att": f"residual width-out {D // 2}",
            "convs.*.bias": "residual vector",
        }
    )
    takes = ("x", "edge_index", "edge_attr")

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.convs = layers(lambda: GATv2Conv(width, width // 2, heads=2, edge_dim=EDGE), depth)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + F.gelu(conv(x, edge_index, edge_attr))
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + f * F.gelu(conv(x, edge_index, edge_attr))
        return self.dec(x)


class Relations(Toy):
    """RGCN: bases (B, in, out), their coefficients (R, B), a root weight (in, out)."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.weight": f"residual width-to-width {D}",
            "convs.*.comp": "residual no-width",
            "convs.*.root": f"residual width-to-width {D}",
            "convs.*.bias": "residual vector",
        }
    )
    takes = ("x", "edge_index", "edge_type")
    conv: ClassVar[type] = RGCNConv

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.convs = layers(lambda: self.conv(width, width, 4, num_bases=2), depth)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = conv(x, edge_index, edge_type).relu() + x
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + f * conv(x, edge_index, edge_type).relu()
        return self.dec(x)


class FastRelations(Relations):
    """FastRGCN picks a matrix for every edge, and divides by counts before it sums: normalised."""

    expected = Expect(Relations.expected.params)
    conv = FastRGCNConv


class GeneratedWeights(Toy):
    """NNConv: a layer's output is used as a D x D matrix."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.lin.weight": f"residual width-to-width {D}",
            "convs.*.bias": "residual vector",
            "convs.*.nn.weight": f"residual generated-from-data {EDGE}",
            "convs.*.nn.bias": f"residual width-to-width {D}",
        },
        gamma=True,
    )
    takes = ("x", "edge_index", "edge_attr")

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.convs = layers(
            lambda: NNConv(width, width, nn.Linear(EDGE, width * width), aggr="add"), depth
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + F.relu(conv(x, edge_index, edge_attr))
        return self.dec(x)


class OtherLayout(Toy):
    """Weights laid out (in, out), and messages summed with a sparse product or by hand."""

    expected = Expect(
        {
            "w_in": f"encoder data-in {N0}",
            "w.*": f"residual width-to-width {D}",
            "up.*": f"residual width-to-width {D}",
            "down.*": f"residual width-to-width {3 * D}",
            "w_out": f"decoder width-out {D}",
        },
        scaled=2 * L,
    )

    def __init__(self) -> None:
        super().__init__()
        self.w_in = nn.Parameter(torch.randn(N0, D))
        self.w = nn.ParameterList(torch.randn(D, D) for _ in range(L))
        self.up = nn.ParameterList(torch.randn(D, 3 * D) for _ in range(L))
        self.down = nn.ParameterList(torch.randn(3 * D, D) for _ in range(L))
        self.w_out = nn.Parameter(torch.randn(D, OUT))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n = x.size(0)
        degree = torch.bincount(edge_index[1], minlength=n).clamp(min=1).to(x.dtype)
        adj = torch.sparse_coo_tensor(
            edge_index, 1 / degree[edge_index[1]], (n, n), check_invariants=False
        ).t()
        x = x @ self.w_in
        for w, up, down in zip(self.w, self.up, self.down, strict=True):
            x = x + torch.relu(torch.sparse.mm(adj, x @ w))
            x = x + torch.matmul(torch.relu(torch.einsum("nd,dk->nk", x, up)), down)
        return x @ self.w_out


class Tied(Toy):
    """One layer, used L times."""

    expected = Expect(
        {
            **ENDS,
            "conv.lin.weight": f"residual width-to-width {D} n={L}",
            "conv.bias": f"residual vector n={L}",
            "norm.*": f"residual vector n={L}",
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.conv, self.norm = GCNConv(D, D), nn.LayerNorm(D)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for _ in range(L):
            x = x + self.conv(self.norm(x), edge_index).relu()
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for _ in range(L):
            x = x + f * self.conv(self.norm(x), edge_index).relu()
        return self.dec(x)


class Unused(PreNorm):
    """Layers that the forward pass never calls, and frozen ones."""

    expected = Expect(
        {**ENDS, **GCN, **NORMS, "spare.*": "any any"},
        notes=("not used in the traced forward pass: spare.weight, spare.bias",),
        unused=("spare.weight", "spare.bias"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(D, D)
        self.norms.requires_grad_(False)
        self.enc.weight.requires_grad_(False)


class Siamese(PreNorm):
    """The same layers run on two graphs: two passes, one depth."""

    expected = Expect({**ENDS, **GCN, **NORMS}, scaled=2 * L)

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(conv(norm(x), edge_index))
        return x

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.dec(self.encode(x, edge_index) - self.encode(x.flip(0), edge_index))

    by_hand = None


class DeepEnds(PreNorm):
    """Deep encoder and decoder, and two outputs: the embedding and the logits."""

    expected = Expect(
        {
            **GCN,
            **NORMS,
            "enc.0.weight": f"encoder data-in {N0}",
            "enc.0.bias": "encoder vector",
            "enc.2.weight": f"hidden width-to-width {2 * D}",
            "enc.2.bias": "hidden vector",
            "position.weight": "encoder data-in 2",
            "position.bias": "encoder vector",
            "final.*": "hidden vector",
            "dec.0.weight": f"hidden width-to-width {D}",
            "dec.0.bias": "hidden vector",
            "dec.2.weight": f"decoder width-out {2 * D}",
            "dec.2.bias": "decoder no-width",
        },
    )

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(N0, 2 * D), nn.ReLU(), nn.Linear(2 * D, D))
        self.position = nn.Linear(2, D)
        self.final = nn.LayerNorm(D)
        self.dec = nn.Sequential(nn.Linear(D, 2 * D), nn.ReLU(), nn.Linear(2 * D, OUT))

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enc(x) + self.position(x[:, :2])
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.act(conv(norm(x), edge_index))
        x = self.final(x)
        return x, self.dec(x)

    by_hand = None


# ---- attention over all nodes, aggregation by hand ----------------------------------------------


class DenseAttention(Toy):
    """to_dense_batch writes through ``out[idx] = x``; attention mixes nodes, so it counts."""

    expected = Expect(
        {
            **ENDS,
            "attns.*weight": f"residual width-to-width {D}",
            "attns.*bias": "residual vector",
            "norms.*": "residual vector",
            **MLPS,
        },
        scaled=2 * L,
    )
    takes = ("x", "batch")

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.attns = layers(lambda: nn.MultiheadAttention(D, 2, batch_first=True))
        self.norms = layers(lambda: nn.LayerNorm(D))
        self.mlps = layers(mlp)

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        x = self.enc(x)
        for attn, norm, net in zip(self.attns, self.norms, self.mlps, strict=True):
            h, mask = to_dense_batch(norm(x), batch)
            h, _ = attn(h, h, h, key_padding_mask=~mask, need_weights=False)
            x = x + h[mask]
            x = x + net(x)
        return self.dec(global_mean_pool(x, batch))

    def by_hand(self, x: Tensor, batch: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for attn, norm, net in zip(self.attns, self.norms, self.mlps, strict=True):
            h, mask = to_dense_batch(norm(x), batch)
            h, _ = attn(h, h, h, key_padding_mask=~mask, need_weights=False)
            x = x + f * h[mask]
            x = x + f * net(x)
        return self.dec(global_mean_pool(x, batch))


class TransformerEncoder(Toy):
    """torch's own layer, post-norm."""

    expected = Expect(
        {
            **ENDS,
            "layers.*.self_attn.*weight": f"residual width-to-width {D}",
            "layers.*.self_attn.*bias": "residual vector",
            "layers.*.linear1.weight": f"residual width-to-width {D}",
            "layers.*.linear2.weight": f"residual width-to-width {2 * D}",
            "layers.*.linear?.bias": "residual vector",
            "layers.*.norm?.*": "stream vector",
        },
        scaled=2 * L,
    )
    takes = ("x", "batch")
    norm_first: ClassVar[bool] = False

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.layers = layers(
            lambda: nn.TransformerEncoderLayer(
                width, 2, 2 * width, batch_first=True, norm_first=self.norm_first
            ),
            depth,
        )

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        h, mask = to_dense_batch(self.enc(x), batch)
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=~mask)
        return self.dec(h[mask])

    def by_hand(self, x: Tensor, batch: Tensor, f: float) -> Tensor:
        h, mask = to_dense_batch(self.enc(x), batch)
        for block in self.layers:
            a = block.norm1(h) if self.norm_first else h
            a = block.self_attn(a, a, a, key_padding_mask=~mask, need_weights=False)[0]
            h = h + f * a
            h = h if self.norm_first else block.norm1(h)
            m = block.norm2(h) if self.norm_first else h
            h = h + f * block.linear2(F.relu(block.linear1(m)))
            h = h if self.norm_first else block.norm2(h)
        return self.dec(h[mask])


class TransformerPreNorm(TransformerEncoder):
    """torch's own layer, pre-norm."""

    expected = Expect(
        {**TransformerEncoder.expected.params, "layers.*.norm?.*": "residual vector"}, scaled=2 * L
    )
    norm_first = True


class ByHand(Toy):
    """Messages summed with index_add_, scatter_add and PyG's scatter: not normalised."""

    expected = Expect(
        {**ENDS, "lins.*.weight": f"residual width-to-width {D}", "lins.*.bias": "residual vector"},
        gamma=True,
    )

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.lins = layers(lambda: nn.Linear(D, D))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        x = self.enc(x)
        for i, lin in enumerate(self.lins):
            message = lin(x)[src]
            if i == 0:
                h = torch.zeros_like(x)
                h.index_add_(0, dst, message)
            elif i == 1:
                h = torch.zeros_like(x).scatter_add(0, dst[:, None].expand_as(message), message)
            elif i == 2:
                h = scatter(message, dst, dim=0, dim_size=x.size(0), reduce="sum")
            else:
                h = x.new_zeros(x.shape).index_add(0, dst, message)
            x = x + F.relu(h)
        return self.dec(x)

    def gathered(self, x: Tensor, edge_index: Tensor, f: float, gamma: float) -> Tensor:
        src, dst = edge_index
        x = self.enc(x)
        for lin in self.lins:
            x = x + f * F.relu(torch.zeros_like(x).index_add(0, dst, lin(x)[src] / gamma))
        return self.dec(x)


class ByHandNormalised(ByHand):
    """The same, divided by the degree before or behind the sum."""

    expected = Expect(ByHand.expected.params)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        degree = torch.zeros(x.size(0)).index_add_(0, dst, torch.ones(dst.size(0))).clamp(min=1)
        x = self.enc(x)
        for i, lin in enumerate(self.lins):
            message = lin(x)[src]
            if i % 2:
                h = torch.zeros_like(x).index_add_(0, dst, message / degree[dst][:, None])
            else:
                h = torch.zeros_like(x).index_add_(0, dst, message) / degree[:, None]
            x = x + F.relu(h)
        return self.dec(x)


class Reversible(Toy):
    """RevGNN: the block computes an inverse, so the branch is scaled, not the sum."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.lin.weight": f"residual width-to-width {D // 2}",
            "convs.*.bias": "residual vector",
        },
        scaled=2 * L,
        width=D // 2,
    )

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.convs = layers(
            lambda: GroupAddRev(GCNConv(width // 2, width // 2), num_groups=2), depth
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            a, b = x.chunk(2, dim=-1)
            a = a + f * conv.convs[0](b, edge_index)
            b = b + f * conv.convs[1](a, edge_index)
            x = torch.cat([a, b], dim=-1)
        return self.dec(x)


class UNet(Toy):
    """Skips inside one another are no steps: nothing is scaled, and L is 1."""

    expected = Expect(
        {
            **ENDS,
            "down.*.lin.weight": f"hidden width-to-width {D}",
            "down.*.bias": "hidden vector",
            "up.*.lin.weight": f"hidden width-to-width {D}",
            "up.*.bias": "hidden vector",
        },
        depth=1,
        scaled=0,
        left=("nested skip",),
        notes=WIDTH_ONLY,
    )

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.down = layers(lambda: GCNConv(D, D), 3)
        self.up = layers(lambda: GCNConv(D, D), 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, xs = self.enc(x), []
        for conv in self.down:
            x = conv(x, edge_index).relu()
            xs.append(x)
        for conv, skip in zip(self.up, reversed(xs[:-1]), strict=True):
            x = conv(x, edge_index).relu() + skip
        return self.dec(x)


# ---- no residual connections at all -------------------------------------------------------------


class PlainLayers(PreNorm):
    """conv, norm, activation, dropout: ``x + branch / L`` is put round all four."""

    expected = Expect({**ENDS, **GCN, **NORMS}, inserted=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            x = self.norms[i](x)
            x = F.relu(x)
            x = F.dropout(x, p=0.5, training=self.training)
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + f * F.relu(norm(conv(x, edge_index)))
        return self.dec(x)


class PlainWithEdges(SharedEdgeEncoder):
    """No residual; what one edge encoder adds to the messages of every layer is no skip either."""

    expected = Expect(SharedEdgeEncoder.expected.params, gamma=True, inserted=True)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, e = self.enc(x), self.edge_enc(edge_attr)
        for conv in self.convs:
            x = conv(x, edge_index, e).relu()
        return self.dec(x)


class KipfStyle(Toy):
    """conv1, conv2, ... by name: the first is the encoder, the last the decoder."""

    expected = Expect(
        {
            "conv1.lin.weight": f"encoder data-in {N0}",
            "conv1.bias": "encoder vector",
            "conv[23].lin.weight": f"residual width-to-width {D}",
            "conv[23].bias": "residual vector",
            "conv4.lin.weight": f"decoder width-out {D}",
            "conv4.bias": "decoder no-width",
        },
        depth=2,
        scaled=2,
        inserted=True,
    )

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(N0, D), GCNConv(D, D)
        self.conv3, self.conv4 = GCNConv(D, D), GCNConv(D, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(self.conv1(x, edge_index).relu(), training=self.training)
        x = F.dropout(self.conv2(x, edge_index).relu(), training=self.training)
        x = F.relu(self.conv3(x, edge_index))
        x = F.dropout(x, training=self.training)
        return F.log_softmax(self.conv4(x, edge_index), dim=1)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        x = x + f * self.conv2(x, edge_index).relu()
        x = x + f * self.conv3(x, edge_index).relu()
        return F.log_softmax(self.conv4(x, edge_index), dim=1)


class BasicGIN(Toy):
    """PyG's GIN: it ends in an MLP D -> C -> C, whose second layer has no width at all."""

    expected = Expect(
        {
            "net.convs.0.nn.lins.0.weight": f"encoder data-in {N0}",
            "net.convs.0.nn.lins.0.bias": "encoder vector",
            "net.convs.0.nn.lins.1.weight": f"hidden width-to-width {D}",
            "net.convs.0.nn.lins.1.bias": "hidden vector",
            "net.convs.[12].nn.lins.*.weight": f"residual width-to-width {D}",
            "net.convs.[12].nn.lins.*.bias": "residual vector",
            "net.convs.3.nn.lins.0.weight": f"decoder width-out {D}",
            "net.convs.3.nn.lins.0.bias": "decoder no-width",
            "net.convs.3.nn.lins.1.*": "decoder no-width",
        },
        depth=2,
        scaled=2,
        gamma=True,
        inserted=True,
    )

    def __init__(self) -> None:
        super().__init__()
        self.net = pyg.GIN(N0, D, 4, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(x, edge_index)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.net.convs[0](x, edge_index).relu()
        x = x + f * self.net.convs[1](x, edge_index).relu()
        x = x + f * self.net.convs[2](x, edge_index).relu()
        return self.net.convs[3](x, edge_index)


class DotAttention(Toy):
    """TransformerConv with its own skip weights inside, a residual stream outside."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.lin_*.weight": f"residual width-to-width {D}",
            "convs.*.lin_*.bias": "residual vector",
            "convs.*.lin_edge.weight": f"residual data-in {EDGE}",
            "convs.*.lin_beta.weight": "any any",
        },
    )
    takes = ("x", "edge_index", "edge_attr")

    def __init__(self, width: int = D, depth: int = L) -> None:
        super().__init__()
        self.start(width)
        self.convs = layers(
            lambda: TransformerConv(width, width // 2, heads=2, edge_dim=EDGE), depth
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index, edge_attr).relu()
        return self.dec(x)


class RootTerms(Toy):
    """GraphConv and SAGEConv with sums: a root term beside the aggregation."""

    expected = Expect(
        {
            **ENDS,
            "convs.*.lin_*.weight": f"residual width-to-width {D}",
            "convs.*.lin_*.bias": "residual vector",
        },
        gamma=True,
    )

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.convs = nn.ModuleList(
            SAGEConv(D, D, aggr="sum") if i % 2 else GraphConv(D, D) for i in range(L)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + F.elu(conv(x, edge_index))
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + f * F.elu(conv(x, edge_index))
        return self.dec(x)


# ---- readouts, backbones, what is added in every layer -------------------------------------------


class Readouts(PreNorm):
    """GIN's readout: a decoder of its own for every layer, added up from 0."""

    expected = Expect(
        {
            **{k: v for k, v in ENDS.items() if k.startswith("enc")},
            **GCN,
            **NORMS,
            "decs.*.weight": f"decoder width-out {D}",
            "decs.*.bias": "decoder no-width",
        },
        scaled=L + L + 1,
    )
    takes = ("x", "edge_index", "batch")

    def __init__(self) -> None:
        super().__init__()
        del self.dec
        self.decs = layers(lambda: nn.Linear(D, OUT), L + 1)

    def states(self, x: Tensor, edge_index: Tensor, f: float = 1.0) -> list[Tensor]:
        states = [self.enc(x)]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            states.append(states[-1] + f * self.act(conv(norm(states[-1]), edge_index)))
        return states

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        states = [self.enc(x)]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            states.append(states[-1] + self.act(conv(norm(states[-1]), edge_index)))
        return self.read(states, batch)

    def read(self, states: list[Tensor], batch: Tensor) -> Tensor:
        score: Any = 0
        for dec, h in zip(self.decs, states, strict=True):
            score += F.dropout(dec(global_mean_pool(h, batch)), 0.5, training=self.training)
        return score

    def by_hand(self, x: Tensor, edge_index: Tensor, batch: Tensor, f: float) -> Tensor:
        states = self.states(x, edge_index, f)
        scores = [d(global_mean_pool(h, batch)) for d, h in zip(self.decs, states, strict=True)]
        return sum(scores) / len(scores)


class ReadoutsOfList(Readouts):
    """The same with the built-in sum (NeuralFingerprint)."""

    def read(self, states: list[Tensor], batch: Tensor) -> Tensor:
        return sum(d(global_mean_pool(h, batch)) for d, h in zip(self.decs, states, strict=True))


class ReadoutsStacked(Readouts):
    """The same with torch.stack."""

    expected = Expect(Readouts.expected.params, scaled=L + 1)

    def read(self, states: list[Tensor], batch: Tensor) -> Tensor:
        scores = [d(global_mean_pool(h, batch)) for d, h in zip(self.decs, states, strict=True)]
        return torch.stack(scores).sum(0)


class ReadoutsWrittenOut(ReadoutsStacked):
    """No loop: one long sum."""

    def read(self, states: list[Tensor], batch: Tensor) -> Tensor:
        a, b, c, d, e = (global_mean_pool(h, batch) for h in states)
        return (
            self.decs[0](a) + self.decs[1](b) + self.decs[2](c) + self.decs[3](d) + self.decs[4](e)
        )


class ReadoutsFromTheFirst(Readouts):
    """DimeNet's: the first readout begins the sum, and keeps its 1."""

    expected = Expect(Readouts.expected.params, scaled=L + L)

    def read(self, states: list[Tensor], batch: Tensor) -> Tensor:
        score = self.decs[0](global_mean_pool(states[0], batch))
        for dec, h in zip(self.decs[1:], states[1:], strict=True):
            score = score + dec(global_mean_pool(h, batch))
        return score

    def by_hand(self, x: Tensor, edge_index: Tensor, batch: Tensor, f: float) -> Tensor:
        states = self.states(x, edge_index, f)
        scores = [d(global_mean_pool(h, batch)) for d, h in zip(self.decs, states, strict=True)]
        return scores[0] + sum(scores[1:]) / len(scores)


class OfficialGIN(Toy):
    """No residual connections, so some are put in; the first readout takes the data as they are."""

    expected = Expect(
        {
            "convs.*.nn.*.weight": f"residual width-to-width {D}",
            "convs.*.nn.*.bias": "residual vector",
            "convs.0.nn.0.weight": f"encoder data-in {N0}",
            "convs.0.nn.0.bias": "encoder vector",
            "convs.0.nn.2.weight": f"hidden width-to-width {D}",
            "convs.0.nn.2.bias": "hidden vector",
            "bns.*": "residual vector",
            "bns.0.*": "hidden vector",
            "decs.*.weight": f"decoder width-out {D}",
            "decs.0.weight": f"decoder no-width {N0}",
            "decs.*.bias": "decoder no-width",
        },
        depth=L - 1,
        scaled=L - 1 + L + 1,
        gamma=True,
        inserted=True,
    )
    takes = ("x", "edge_index", "batch")

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(D if i else N0, D), nn.ReLU(), nn.Linear(D, D)))
            for i in range(L)
        )
        self.bns = layers(lambda: nn.BatchNorm1d(D))
        self.decs = nn.ModuleList(nn.Linear(D if i else N0, OUT) for i in range(L + 1))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        hidden = [x]
        for conv, bn in zip(self.convs, self.bns, strict=True):
            x = F.relu(bn(conv(x, edge_index)))
            hidden.append(x)
        score: Any = 0
        for layer, h in enumerate(hidden):
            pooled = global_mean_pool(h, batch)
            score += F.dropout(self.decs[layer](pooled), 0.5, training=self.training)
        return score

    def by_hand(self, x: Tensor, edge_index: Tensor, batch: Tensor, f: float) -> Tensor:
        hidden = [x]
        for i, (conv, bn) in enumerate(zip(self.convs, self.bns, strict=True)):
            h = F.relu(bn(conv(x, edge_index)))
            x = x + f * h if i else h
            hidden.append(x)
        scores = [d(global_mean_pool(h, batch)) for d, h in zip(self.decs, hidden, strict=True)]
        return sum(scores) / len(scores)


class TiedReadout(Readouts):
    """One decoder for all layers."""

    expected = Expect({**ENDS, **GCN, **NORMS}, scaled=L + L + 1)

    def __init__(self) -> None:
        super().__init__()
        del self.decs
        self.dec = nn.Linear(D, OUT)

    def read(self, states: list[Tensor], batch: Tensor) -> Tensor:
        score: Any = 0
        for h in states:
            score = score + self.dec(global_mean_pool(h, batch))
        return score

    def by_hand(self, x: Tensor, edge_index: Tensor, batch: Tensor, f: float) -> Tensor:
        scores = [self.dec(global_mean_pool(h, batch)) for h in self.states(x, edge_index, f)]
        return sum(scores) / len(scores)


class TwoHeads(PreNorm):
    """Two decoders of one and the same state, and a wide one beside a deep one: no readouts."""

    expected = Expect(
        {**ENDS, **GCN, **NORMS, "wide.*": "any any", "other.*": ENDS["dec.weight"]}
        | {"other.bias": ENDS["dec.bias"]},
        left=(),
    )

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(D, OUT)
        self.wide = nn.Linear(N0, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        raw = x
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.act(conv(norm(x), edge_index))
        return self.dec(x) + self.other(x) + self.wide(raw)

    by_hand = None


class InitialFirst(InitialAndStream):
    """The first features added before the branch, in one sum."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = x0 = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + 0.1 * x0 + self.act(conv(norm(x), edge_index))
        return self.dec(x)


class PositionsInEveryLayer(PreNorm):
    """An embedding of positions, made once, added to the stream in every layer."""

    expected = Expect(
        {
            **ENDS,
            **GCN,
            **NORMS,
            "position.weight": f"residual data-in 2 n={L}",
            "position.bias": f"residual vector n={L}",
        },
        scaled=2 * L,
    )

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Linear(2, D)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        position = self.position(x[:, :2])
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.act(conv(norm(x), edge_index)) + position
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        position = self.position(x[:, :2])
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + f * self.act(conv(norm(x), edge_index)) + f * position
        return self.dec(x)


class Backbone(PreNorm):
    """Returns its stream: a head comes later."""

    expected = Expect(
        {k: v for k, v in PreNorm.expected.params.items() if not k.startswith("dec")},
        notes=("no decoder: the output has the width itself (16)",),
    )

    def __init__(self) -> None:
        super().__init__()
        del self.dec

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.act(conv(norm(x), edge_index))
        return x

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + f * self.act(conv(norm(x), edge_index))
        return x


class BasicBackbone(Toy):
    """PyG's GCN without out_channels: its last layer is a layer like the others."""

    expected = Expect(
        {
            "net.convs.*.lin.weight": f"residual width-to-width {D}",
            "net.convs.*.bias": "residual vector",
            "net.convs.0.lin.weight": f"encoder data-in {N0}",
            "net.convs.0.bias": "encoder vector",
        },
        depth=L - 1,
        scaled=L - 1,
        inserted=True,
        notes=("type roles={'net.convs.3.lin.weight': 'decoder'}",),
    )

    def __init__(self) -> None:
        super().__init__()
        self.net = pyg.GCN(N0, D, L)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(x, edge_index)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        convs = self.net.convs
        x = F.relu(convs[0](x, edge_index))
        for i, conv in enumerate(convs[1:]):
            h = conv(x, edge_index)
            x = x + f * (F.relu(h) if i < L - 2 else h)
        return x


class WideHead(PreNorm):
    """A head as wide as the stream: a decoder, unless the user says that it grows."""

    expected = Expect(
        PreNorm.expected.params, notes=("If it does, type roles={'dec.weight': 'hidden'}",)
    )

    def __init__(self) -> None:
        super().__init__()
        self.dec = nn.Linear(D, D)


class DenseNet(Toy):
    """Every layer sees the outputs of all layers before it, side by side."""

    expected = Expect(
        {
            "enc.weight": f"encoder data-in {N0}",
            "enc.bias": "encoder vector",
            "convs.*.lin.weight": "hidden width-to-width",
            "convs.*.bias": "hidden vector",
            "dec.weight": f"decoder width-out {D + L * D}",
            "dec.bias": "decoder no-width",
        },
        depth=1,
        scaled=0,
        notes=(*WIDTH_ONLY, "its layers are concatenated (DenseNet)"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.convs = nn.ModuleList(GCNConv(D + i * D, D) for i in range(L))
        self.dec = nn.Linear(D + L * D, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x, edge_index))], dim=-1)
        return self.dec(x)


class DenseNetOfStates(DenseNet):
    """The same with a list of states."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        states = [self.enc(x)]
        for conv in self.convs:
            states.append(F.relu(conv(torch.cat(states, dim=-1), edge_index)))
        return self.dec(torch.cat(states, dim=-1))


class SharedEdgeUpdate(Toy):
    """Edges have a stream of their own, updated in every layer by one and the same weight."""

    expected = Expect(
        {
            **ENDS,
            "edge_enc.weight": f"residual data-in {EDGE} n={L}",
            "edge_enc.bias": f"residual vector n={L}",
            # The last update of the edges reaches no output.
            "update.weight": f"residual width-to-width {D} n={L - 1}",
            "update.bias": f"residual vector n={L - 1}",
            "value.*.weight": f"residual width-to-width {D}",
            "value.*.bias": "residual vector",
        },
        scaled=2 * L,
    )
    takes = ("x", "edge_index", "edge_attr")

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.edge_enc, self.update = nn.Linear(EDGE, D), nn.Linear(D, D)
        self.value = layers(lambda: nn.Linear(D, D))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, e = self.enc(x), self.edge_enc(edge_attr)
        source, target = edge_index
        for value in self.value:
            messages = torch.sigmoid(e) * value(x)[source]
            x = x + F.relu(scatter(messages, target, 0, x.size(0), reduce="mean"))
            e = e + F.relu(self.update(x[source] + x[target]))
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, f: float) -> Tensor:
        x, e = self.enc(x), self.edge_enc(edge_attr)
        source, target = edge_index
        for value in self.value:
            messages = torch.sigmoid(e) * value(x)[source]
            x = x + f * F.relu(scatter(messages, target, 0, x.size(0), reduce="mean"))
            e = e + f * F.relu(self.update(x[source] + x[target]))
        return self.dec(x)


class PostGraphNorm(PreNorm):
    """A norm on the stream whose second gain multiplies the mean that it takes off."""

    expected = Expect({**ENDS, **GCN, "norms.*": "stream vector"})

    def __init__(self) -> None:
        super().__init__()
        self.norms = layers(lambda: pyg.GraphNorm(D))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(x + F.relu(conv(x, edge_index)))
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(x + f * F.relu(conv(x, edge_index)))
        return self.dec(x)


class AverageThenNorm(PreNorm):
    """SGFormer's ``0.5 * h + 0.5 * x`` with a norm behind it: only the proportion matters."""

    expected = Expect({**ENDS, **GCN, "norms.*": "stream vector"})

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(0.5 * conv(x, edge_index) + (1 - 0.5) * x)
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(0.5 * f * conv(x, edge_index) + 0.5 * x)
        return self.dec(x)


class SumOfPlainLayers(LearnedSkip):
    """Polynormer's local part: no stream, but the outputs of all layers are added up."""

    expected = Expect(
        LearnedSkip.expected.params,
        depth=1,
        scaled=L,
        left=("learned skip", "scaled skip (coefficient 0.1)"),
        notes=WIDTH_ONLY,
    )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        total: Any = 0
        for conv, lin, norm in zip(self.convs, self.lins, self.norms, strict=True):
            x = F.relu(norm(conv(x, edge_index) + lin(x)))
            x = 0.1 * x + 0.9 * norm(F.gelu(lin(x)) * x)
            total = total + x
        return self.dec(total)


class Variant(PreNorm):
    """GCNII's other variant: a stream, and the first features inside the branch."""

    expected = Expect({**ENDS, **GCN, **NORMS})

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = x0 = F.relu(self.enc(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            near = 0.9 * scatter(x[edge_index[0]], edge_index[1], 0, x.size(0), reduce="mean")
            near = near + 0.1 * x0
            x = F.relu(0.3 * conv(norm(near), edge_index) + 0.7 * near + x)
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = x0 = F.relu(self.enc(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            near = 0.9 * scatter(x[edge_index[0]], edge_index[1], 0, x.size(0), reduce="mean")
            near = near + 0.1 * x0
            x = F.relu(f * 0.3 * conv(norm(near), edge_index) + f * 0.7 * near + x)
        return self.dec(x)


class DenseGATLayer(nn.Module):
    """pyGAT's layer: scores of the two ends, added up for all pairs of nodes."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(fan_in, fan_out))
        self.a = nn.Parameter(torch.randn(2 * fan_out, 1))
        self.size = fan_out

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        h = x @ self.w
        scores = F.leaky_relu(h @ self.a[: self.size] + (h @ self.a[self.size :]).T)
        masked = torch.where(adj > 0, scores, torch.full_like(scores, -9e15))
        return F.dropout(masked.softmax(dim=1), 0.1, training=self.training) @ h


class DenseGAT(Toy):
    """Attention in the very layer that is the decoder: its scores are no width."""

    expected = Expect(
        {
            "heads.*.w": f"encoder data-in {N0}",
            "heads.*.a": f"hidden width-out {D // 2}",
            "out.w": f"decoder width-out {D}",
            "out.a": f"decoder no-width {OUT}",
        },
        depth=1,
        scaled=0,
        notes=WIDTH_ONLY,
    )

    def __init__(self) -> None:
        super().__init__()
        self.heads = layers(lambda: DenseGATLayer(N0, D // 2), 2)
        self.out = DenseGATLayer(D, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        adj = torch.eye(x.size(0))
        adj[edge_index[0], edge_index[1]] = 1.0
        x = torch.cat([F.elu(head(x, adj)) for head in self.heads], dim=1)
        return self.out(x, adj)


class GatedHops(Toy):
    """DAGNN: the logits of many hops, weighted by one learned score each."""

    expected = Expect(
        {
            **ENDS,
            "score.weight": f"decoder no-width {OUT}",
            "score.bias": "decoder no-width",
        },
        depth=1,
        scaled=0,
        notes=WIDTH_ONLY,
    )

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.score = nn.Linear(OUT, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hops = [self.dec(F.relu(self.enc(x)))]
        for _ in range(L):
            hops.append(
                scatter(hops[-1][edge_index[0]], edge_index[1], 0, x.size(0), reduce="mean")
            )
        stacked = torch.stack(hops, dim=1)
        weights = self.score(stacked).squeeze().sigmoid().unsqueeze(1)
        return torch.matmul(weights, stacked).squeeze()


MODELS: tuple[type[Toy], ...] = tuple(
    cls
    for cls in globals().values()
    if isinstance(cls, type) and issubclass(cls, Toy) and cls is not Toy
)
"""All of them, in the order in which they stand here."""

"""Random graph networks as source text: what layers they have and how their forward is written.

A `Recipe` says what the model computes and in which style. `source` writes it down, either as a
user would (``factor=None``) or with 1/L by hand; under other names, or with its layers made in
another order, the model is the same. Text, because the transfer edits text: classes made by calls
of `type` would all share one forward.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.data import Data

N0, EDGE, OUT, NODES, WIDTH = 5, 4, 3, 18, 12

CONVS = {
    "gcn": "GCNConv(D, D)",
    "gin": "GINConv(nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D)))",
    "sage": "SAGEConv(D, D)",
    "gatv2": "GATv2Conv(D, D // 4, heads=4)",
    "graph": "GraphConv(D, D)",
    "gine": "GINEConv(nn.Linear(D, D), edge_dim=EDGE)",
    "transformer": "TransformerConv(D, D // 2, heads=2, edge_dim=EDGE)",
    "handmade": "Handmade(D)",
}
WITH_EDGES = ("gine", "transformer")
ACTIVATIONS = {
    "none": "h",
    "functional": "F.relu(h)",
    "method": "h.relu()",
    "module": "self.act(h)",
    "gelu": "F.gelu(h)",
}
DROPOUTS = {"none": "h", "functional": "F.dropout(h, 0.2, self.training)", "module": "self.drop(h)"}
ADDS = {
    "right": ["x = x + h"],
    "left": ["x = h + x"],
    "in place": ["h = h.clone()", "h += x", "x = h"],
    "add_": ["x = h.clone().add_(x)"],
    "torch.add": ["x = torch.add(x, h)"],
    "method": ["x = x.add(h)"],
    "alpha": ["x = torch.add(x, h, alpha=1)"],
    "sum": ["x = sum([x, h])"],
    "sum, left": ["x = sum((h, x))"],
    "names": ["before = x", "after = before + h", "x = after"],
    "condition": ["x = x + h if x.shape == h.shape else h"],
    "conditions": ["if x.shape == h.shape:", "    x = x + h", "else:", "    x = h"],
    "walrus": ["x = (y := x + h)"],
    "wrapped": ["x = (", "    x", "    + h", ")"],
    "setitem": ["out = torch.zeros_like(x)", "out[:] = x + h", "x = out"],
}
WILD = {
    "function": ["x = plus(x, h)"],
    "lambda": ["x = (lambda a, b: a + b)(x, h)"],
    "static": ["x = self.plus(x, h)"],
    "reduce": ["x = functools.reduce(operator.add, [x, h])"],
    "minus": ["x = x - (-h)"],
    "comprehension": ["x = [a + b for a, b in [(x, h)]][0]"],
    "two": ["x, y = x + h, h + x"],
}
"""Ways to add that need not be understood; but then they must be refused."""
LOOSE = {
    "addcmul": ["x = torch.addcmul(x, h, torch.ones_like(h))"],
    "stack": ["x = torch.stack([x, h]).sum(dim=0)"],
    "cat": ["x = torch.cat([x[None], h[None]]).sum(0)"],
    "initial": ["x = 0.9 * (x + h) + 0.1 * x0"],
    "gate": ["g = torch.sigmoid(x.mean(-1, keepdim=True))", "x = g * x + (1 - g) * h"],
    "scaled": ["x = 0.5 * x + h"],
    "plain": ["x = h"],
    "nested": ["x = x + (h + torch.tanh(h))"],
    "projected": ["x = self.mix(x) + h"],
    "concatenated": ["x = self.join(torch.cat([x, h], dim=-1))"],
    "twice": ["x = x + h + x"],
    "maximum": ["x = torch.maximum(x, h)"],
    "detached": ["x = x + h.detach()"],
    "numbers": ["x = x + h * h.abs().mean().item()"],
}
"""Where the answer is not plain 1/L, or the sum is not seen (`stack`, `cat`, `addcmul`): only
what holds for every model is asked of them."""
FORMS = ("loop", "zip", "unrolled", "dict", "blocks", "sequential", "h_list")


@dataclass(frozen=True)
class Recipe:
    """What a random model is made of, and how it is written."""

    depth: int
    form: str
    conv: str
    add: str
    norm: str
    kind: str
    activation: str
    dropout: str
    one_line: bool
    shared: bool
    mlp: bool
    virtual: bool
    jumping: str
    categories: bool
    final_norm: bool
    pooled: bool

    @property
    def known(self) -> bool:
        """Whether the transferred model can be written by hand: every branch times 1/L."""
        return self.add not in LOOSE

    @property
    def batched(self) -> bool:
        return self.form == "sequential"

    @property
    def stream_norms(self) -> bool:
        return self.norm == "post"


def put_right(recipe: Recipe) -> Recipe:
    """The same without what cannot go together."""
    changes: dict[str, Any] = {}
    if recipe.form in ("blocks", "sequential") and recipe.add in LOOSE:
        changes["form"] = "loop"
    form = changes.get("form", recipe.form)
    if form in ("blocks", "sequential"):
        changes |= {"virtual": False, "jumping": "last", "shared": False}
    if form == "unrolled":  # its first broadcast is no more than a bias of the encoder
        changes |= {"virtual": False}
    if form == "h_list":
        changes |= {"virtual": False, "mlp": False}
    return replace(recipe, **changes)


def recipes(adds: Any) -> st.SearchStrategy[Recipe]:
    """Models that add in one of these ways."""
    return st.builds(
        Recipe,
        depth=st.integers(1, 5),
        form=st.sampled_from(FORMS),
        conv=st.sampled_from(sorted(CONVS)),
        add=st.sampled_from(sorted(adds)),
        norm=st.sampled_from(["none", "pre", "post", "inside"]),
        kind=st.sampled_from(["nn.LayerNorm", "nn.BatchNorm1d"]),
        activation=st.sampled_from(sorted(ACTIVATIONS)),
        dropout=st.sampled_from(sorted(DROPOUTS)),
        one_line=st.booleans(),
        shared=st.booleans(),
        mlp=st.booleans(),
        virtual=st.booleans(),
        jumping=st.sampled_from(["last", "sum", "cat", "mean"]),
        categories=st.booleans(),
        final_norm=st.booleans(),
        pooled=st.booleans(),
    ).map(put_right)


# ---- writing ----------------------------------------------------------------------------------


@dataclass
class Writer:
    """Turns a recipe into lines of Python."""

    recipe: Recipe
    factor: float | None
    name: Callable[[str], str]

    def scaled(self, text: str) -> str:
        return text if self.factor is None else f"{self.factor!r} * ({text})"

    def layer(self, conv: str, norm: str, mlp: str) -> list[str]:
        """One layer: branch, sum, and what follows it."""
        r = self.recipe
        edges = "edge_index, edge_attr=edge_attr" if r.conv in WITH_EDGES else "edge_index"
        steps = [f"{norm}(x)" if r.norm == "pre" else "x", f"{conv}(h, {edges})"]
        steps += [f"{norm}(h)"] if r.norm == "inside" else []
        steps += [ACTIVATIONS[r.activation], DROPOUTS[r.dropout]]
        if r.one_line:
            text = "x"
            for step in steps:
                text = _put(step, text)
            lines = [f"h = {self.scaled(text)}"]
        else:
            lines = [f"h = {step}" for step in steps if step != "h"]
            lines += [f"h = {self.scaled('h')}"] if self.factor is not None else []
        lines += {**ADDS, **WILD, **LOOSE}[r.add]
        lines += [f"x = {norm}(x)"] if r.norm == "post" else []
        return lines + ([f"x = x + {self.scaled(f'{mlp}(x)')}"] if r.mlp else [])

    def parts(self) -> list[tuple[str, str, str]]:
        """(attribute, code that makes it, how the i-th layer names it), in any order."""
        r, n = self.recipe, self.name
        made = {"conv": CONVS[r.conv], "norm": f"{r.kind}(D)"}
        made["mlp"] = "nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))"
        used = ["conv"] + ["norm"] * (r.norm != "none") + ["mlp"] * r.mlp
        found = []
        for kind in used:
            own = n(kind)
            if kind == "conv" and r.shared:
                found.append((kind, f"self.{own} = {made[kind]}", f"self.{own}"))
            elif r.form == "unrolled":
                code = "; ".join(f"self.{own}_{i} = {made[kind]}" for i in range(r.depth))
                found.append((kind, code, f"self.{own}_{{i}}"))
            elif r.form == "dict":
                code = f"nn.ModuleDict({{f'layer{{i}}': {made[kind]} for i in range(L)}})"
                found.append((kind, f"self.{own} = {code}", f"self.{own}[f'layer{{i}}']"))
            else:
                code = f"nn.ModuleList({made[kind]} for i in range(L))"
                found.append((kind, f"self.{own} = {code}", f"self.{own}[i]"))
        return found

    def init(self) -> list[str]:
        r, n = self.recipe, self.name
        encoder = "nn.Embedding(7, D)" if r.categories else "nn.Linear(N0, D)"
        wide = "D * (L + 1)" if r.jumping == "cat" else "D"
        lines = [f"self.{n('enc')} = {encoder}", f"self.{n('dec')} = nn.Linear({wide}, OUT)"]
        lines += ["self.act = nn.ReLU()", "self.drop = nn.Dropout(0.1)"]
        if r.add in ("projected", "concatenated"):
            lines += ["self.mix = nn.Linear(D, D)", "self.join = nn.Linear(2 * D, D)"]
        if r.form in ("blocks", "sequential"):
            inner = "nn.Sequential(*[Block() for i in range(L)])"
            inner = inner if r.batched else "nn.ModuleList(Block() for i in range(L))"
            lines.append(f"self.{n('blocks')} = {inner}")
        else:
            lines += [code for _, code, _ in self.parts()]
        if r.final_norm:
            lines.append(f"self.{n('last')} = nn.LayerNorm({wide})")
        if r.virtual:
            lines.append(f"self.{n('state')} = nn.Embedding(1, D)")
            lines.append(f"self.{n('updates')} = nn.ModuleList(nn.Linear(D, D) for i in range(L))")
        return lines

    def forward(self) -> list[str]:
        r, n = self.recipe, self.name
        lines = ["x = x0 = self.{}(x)".format(n("enc")), "states = [x]"]
        if r.virtual:
            zeros = "torch.zeros(int(batch.max()) + 1, dtype=torch.long)"
            lines.append(f"state = self.{n('state')}({zeros})")
        access = {kind: text for kind, _, text in self.parts()}
        parts = [access.get(kind, "None") for kind in ("conv", "norm", "mlp")]
        if r.form == "blocks":
            lines += [f"for block in self.{n('blocks')}:",
                      "    x = block(x, edge_index, edge_attr)"]  # fmt: skip
        elif r.form == "sequential":
            lines += ["data.x = x", f"x = self.{n('blocks')}(data).x"]
        elif r.form == "unrolled":
            for i in range(r.depth):
                here = [part.replace("{i}", str(i)) for part in parts]
                lines += self.step(self.layer(*here), i == r.depth - 1, str(i))
        elif r.form == "h_list":
            body = ["x = states[i]", *self.layer(*parts), "states.append(x)"]
            lines += ["for i in range(L):", *_indented(body)]
        elif r.form == "zip" and not r.shared:
            lists = ", ".join(text.removesuffix("[i]") for text in access.values())
            names = [f"one_{kind}" for kind in access]
            local = [f"one_{kind}" for kind in ("conv", "norm", "mlp")]
            body = self.step(self.layer(*local), None, "i")
            lines += [f"for i, ({', '.join(names)},) in enumerate(zip({lists})):", *_indented(body)]
        else:
            lines += ["for i in range(L):", *_indented(self.step(self.layer(*parts), None, "i"))]
        return lines + self.end()

    def step(self, layer: list[str], last: bool | None, i: str) -> list[str]:
        """A layer with the virtual node round it, and what is kept of it."""
        lines, n = list(layer), self.name
        if self.recipe.virtual:
            lines = [f"x = x + {self.scaled('state[batch]')}", *lines]
            update = f"self.{n('updates')}[{i}](global_mean_pool(x, batch))"
            code = f"state = state + {self.scaled(update)}"
            if last is None:
                lines += ["if i < L - 1:", f"    {code}"]
            elif not last:
                lines.append(code)
        return [*lines, "states.append(x)"]

    def end(self) -> list[str]:
        r, n = self.recipe, self.name
        one = self.scaled("s")
        lines = {
            "last": [],
            "sum": [f"x = sum({one} for s in states)" if self.factor else "x = sum(states)"],
            "cat": ["x = torch.cat(states, dim=-1)"],
            "mean": ["x = torch.stack(states).mean(dim=0)"],
        }[r.jumping]
        lines += [f"x = self.{n('last')}(x)"] if r.final_norm else []
        lines += ["x = global_mean_pool(x, batch)"] if r.pooled else []
        return [*lines, f"return self.{n('dec')}(x)"]

    def block(self) -> list[str]:
        """A block of its own class; in a `Sequential` it takes a batch and changes it."""
        r, n = self.recipe, self.name
        parts = ["self." + n(kind) for kind in ("conv", "norm", "mlp")]
        init = ["self.act = nn.ReLU()", "self.drop = nn.Dropout(0.1)"]
        for kind, code, _ in self.parts():
            inner = code.split("nn.ModuleList(")[-1].rsplit(" for i in range(L)", 1)[0]
            init.append(f"self.{n(kind)} = {inner}")
        head = "data" if r.batched else "x, edge_index, edge_attr"
        unpack = ["x, edge_index, edge_attr = data.x, data.edge_index, data.edge_attr"]
        body = [*(unpack if r.batched else []), *self.layer(*parts)]
        body += ["data.x = x", "return data"] if r.batched else ["return x"]
        return _class("Block", init, head, body)


def _put(step: str, text: str) -> str:
    """A step with ``text`` for its ``h``."""
    for form in ("(h)", "(h,"):
        if form in step:
            return step.replace(form, f"({text}{form[-1]}", 1)
    return text if step == "h" else step.replace("h.", f"({text}).", 1) if "h." in step else step


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def _class(name: str, init: list[str], arguments: str, forward: list[str]) -> list[str]:
    return [
        f"class {name}(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        *_indented(_indented(init)),
        "    @staticmethod",
        "    def plus(a, b):",
        "        return a + b",
        f"    def forward(self, {arguments}):",
        *_indented(_indented(forward)),
    ]


HEAD = f"""
import functools
import operator
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import (GATv2Conv, GCNConv, GINConv, GINEConv, GraphConv, SAGEConv,
                                TransformerConv, global_mean_pool)
N0, EDGE, OUT = {N0}, {EDGE}, {OUT}

def plus(a, b):
    return a + b

class Handmade(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
    def forward(self, x, edge_index):
        m = x[edge_index[0]] @ self.weight
        degree = torch.zeros(len(x)).index_add_(0, edge_index[1], torch.ones(edge_index.size(1)))
        return torch.zeros_like(x).index_add_(0, edge_index[1], m) / degree.clamp(min=1)[:, None]
"""


def source(
    recipe: Recipe,
    factor: float | None = None,
    name: Callable[[str], str] = str,
    order: int | None = None,
    width: int = WIDTH,
) -> str:
    """The model as Python; ``order`` seeds a shuffle of the lines that make its layers."""
    writer = Writer(recipe, factor, name)
    init, forward = writer.init(), writer.forward()
    if order is not None:
        random.Random(order).shuffle(init)
    lines = writer.block() if recipe.form in ("blocks", "sequential") else []
    fields = "x, edge_index, edge_attr, batch"
    if recipe.batched:
        take = ", ".join(f"data.{field}" for field in fields.split(", "))
        lines += _class("Net", init, "data", [f"{fields} = {take}", *forward])
    else:
        lines += _class("Net", init, fields, forward)
    return f"{HEAD}\nL, D = {recipe.depth}, {width}\n\n" + "\n".join(lines) + "\n"


_NUMBER = itertools.count()


def model_of(text: str, folder: Path, seed: int = 7) -> nn.Module:
    """The model, from a file of its own: the transfer reads the source of what it edits."""
    name = f"fuzzed_{next(_NUMBER)}"
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        torch.manual_seed(seed)
        net: nn.Module = module.Net()
        return net
    finally:
        del sys.modules[name]


def example(recipe: Recipe) -> Any:
    draw = torch.Generator().manual_seed(0)
    half = torch.randint(0, NODES // 2, (2, 24), generator=draw)
    half[:, 12:] += NODES // 2
    edges = torch.cat([half, half.flip(0)], dim=1)
    x = torch.randn(NODES, N0, generator=draw)
    attributes = torch.randn(edges.size(1), EDGE, generator=draw)
    if recipe.categories:
        x = torch.randint(0, 7, (NODES,), generator=draw)
    batch = torch.arange(NODES) // (NODES // 2)
    fields: dict[str, Tensor] = {"x": x, "edge_index": edges, "edge_attr": attributes}
    return Data(**fields, batch=batch) if recipe.batched else (*fields.values(), batch)

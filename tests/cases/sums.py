"""Sums in the forward pass: steps of a stream, skips in many spellings, gates, sums over layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    DirGNNConv,
    GATConv,
    GCNConv,
    global_add_pool,
    global_mean_pool,
)

from .kit import (
    CLASSES,
    FEATURES,
    GRAPHS,
    NODES,
    WIDTH_ONLY,
    Case,
    Check,
    Lab,
    Silent,
    Wrong,
    batch,
    computes,
    depth_is_depth,
    draw,
    graph,
    layers,
    not_said,
    rate,
    said,
    same_plan,
    scale,
    trains,
    untouched,
)


class Stack(nn.Module):
    """Encoder, norms, convolutions, decoder; subclasses say how a layer's output joins."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.enc = nn.Linear(FEATURES, width)
        self.norms = layers(lambda: nn.LayerNorm(width), depth)
        self.convs = layers(lambda: GCNConv(width, width), depth)
        self.dec = nn.Linear(width, CLASSES)


# --- skips, plain and through an index -----------------------------------------------------------


class PlainSkip(Stack):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x), edge_index).relu()
        return self.dec(x)


class PlainSkipByHand(Stack):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x), edge_index).relu() / self.depth
        return self.dec(x)


class IndexSkip(Stack):
    """Two nodes fewer in every layer, chosen by an index."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            keep = torch.arange(x.size(0) - 2)
            inside = edge_index[:, (edge_index < x.size(0)).all(0)]
            h = conv(norm(x), inside).relu()
            x = x[keep] + h[keep]
        return self.dec(x)


class IndexSkipByHand(Stack):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            inside = edge_index[:, (edge_index < x.size(0)).all(0)]
            h = conv(norm(x), inside).relu()
            x = x[:-2] + h[:-2] / self.depth
        return self.dec(x)


class MaskSkip(Stack):
    """The same by a mask."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            keep = torch.arange(x.size(0)) < x.size(0) - 2
            inside = edge_index[:, (edge_index < x.size(0)).all(0)]
            h = conv(norm(x), inside).relu()
            x = x[keep] + h[keep]
        return self.dec(x)


class RollSkip(Stack):
    """The nodes stand in a circle, and every layer shifts them by three."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x.roll(3, 0) + conv(norm(x), edge_index).relu().roll(3, 0)
        return self.dec(x)


class RollSkipByHand(Stack):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x.roll(3, 0) + conv(norm(x), edge_index).relu().roll(3, 0) / self.depth
        return self.dec(x)


class FlipSkip(Stack):
    """Every layer reads the nodes in the other order."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x.flip(0) + conv(norm(x), edge_index).relu().flip(0)
        return self.dec(x)


class FlipSkipByHand(Stack):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x.flip(0) + conv(norm(x), edge_index).relu().flip(0) / self.depth
        return self.dec(x)


class PadSkip(Stack):
    """A row of zeros is put behind the nodes, as a place for messages to nowhere."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.pad(x, (0, 0, 0, 1)) + conv(F.pad(norm(x), (0, 0, 0, 1)), edge_index).relu()
            x = x[:-1]
        return self.dec(x)


class PadSkipByHand(Stack):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = conv(F.pad(norm(x), (0, 0, 0, 1)), edge_index).relu()
            x = x + h[:-1] / self.depth
        return self.dec(x)


class BufferWrite(Stack):
    """What a layer makes is written into a buffer row by row, and read from there."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.register_buffer("memory", torch.zeros(NODES, width))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        index = torch.arange(NODES)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            self.memory[index] = conv(norm(x), edge_index).relu()
            x = x + self.memory.clone()
        self.memory.detach_()
        return self.dec(x)


class BufferWriteByHand(PlainSkipByHand):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.register_buffer("memory", torch.zeros(NODES, width))


# --- gates ---------------------------------------------------------------------------------------


class Gate(Stack):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.gates = layers(lambda: nn.Linear(width, width), depth)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm, gate in zip(self.convs, self.norms, self.gates, strict=True):
            h, g = conv(norm(x), edge_index).relu(), torch.sigmoid(gate(x))
            x = g * h + (1 - g) * x
        return self.dec(x)


class GateOfDifference(Gate):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm, gate in zip(self.convs, self.norms, self.gates, strict=True):
            h, g = conv(norm(x), edge_index).relu(), torch.sigmoid(gate(x))
            x = x + g * (h - x)
        return self.dec(x)


def _as_first_spelling(lab: Lab) -> None:
    """Another spelling of a gate computes what ``g * h + (1 - g) * x`` does after transfer."""
    other = Lab(Case("", "", Gate, graph, expect=()))
    here, there = lab.transferred(), other.transferred()
    outputs = lab.output(here.model).detach(), other.output(there.model).detach()
    if (outputs[0] - outputs[1]).abs().max() > 1e-4 * outputs[1].abs().max():
        raise Wrong(
            "one function, two plans: after transfer the outputs differ "
            f"(L = {here.plan.depth}, and {there.plan.depth} for g * h + (1 - g) * x)"
        )
    first, second = (bool(it.says(WIDTH_ONLY)) for it in (lab, other))
    if first != second:
        raise Silent("what is said of g * h + (1 - g) * x is not said of this spelling")


class LSTMEveryLayer(Stack):
    """A graph convolution and an LSTM cell in every layer, the state beginning at zero."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.cells = layers(lambda: nn.LSTMCell(width, width), depth)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        h = c = torch.zeros_like(x)
        for conv, norm, cell in zip(self.convs, self.norms, self.cells, strict=True):
            h, c = cell(conv(norm(x), edge_index).tanh(), (h, c))
            x = h
        return self.dec(x)


class ParallelLayers(Stack):
    """All convolutions read the encoder's output; an LSTM takes up one after the other."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.lstms = layers(lambda: nn.LSTM(2 * width, width), depth)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, made = self.enc(x), []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            made.append(conv(norm(x), edge_index).tanh())
        x = x[None]
        h = c = torch.zeros_like(x)
        for y, lstm in zip(made, self.lstms, strict=True):
            x, (h, c) = lstm(torch.cat([y[None], x], -1), (h, c))
        return self.dec(x[0])


# --- sums and concatenations over layers ---------------------------------------------------------


class MeanOfStates(Stack):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, states = self.enc(x), []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x), edge_index).relu()
            states.append(x)
        return self.dec(sum(states) / len(states))


class MeanOfStatesByHand(Stack):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, states = self.enc(x), []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x), edge_index).relu() / self.depth
            states.append(x)
        return self.dec(torch.stack(states).mean(0))


class JumpingCat(Stack):
    """All states side by side, into a hidden layer, and then the decoder."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.mix = nn.Linear(depth * width, width)

    def states(self, x: Tensor, edge_index: Tensor) -> list[Tensor]:
        x, states = self.enc(x), []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x), edge_index).relu()
            states.append(x)
        return states

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.dec(self.mix(torch.cat(self.states(x, edge_index), -1)).relu())


class JumpingCatHead(JumpingCat):
    """The usual head: cat, pool, dropout, two layers."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = global_mean_pool(torch.cat(self.states(x, edge_index), -1), batch)
        return self.dec(self.mix(F.dropout(x, 0.1, self.training)).relu())


# --- depth ---------------------------------------------------------------------------------------


class SumOfLearnedSkips(Stack):
    """Layers with learned skips, no stream; the outputs of all layers are added up."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.lins = layers(lambda: nn.Linear(width, width), depth)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, total = self.enc(x), 0
        for conv, lin, norm in zip(self.convs, self.lins, self.norms, strict=True):
            x = norm(conv(x, edge_index) + lin(x)).relu()
            total = total + x
        return self.dec(total)


class SumOfLearnedSkipsByHand(SumOfLearnedSkips):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, total = self.enc(x), 0
        for conv, lin, norm in zip(self.convs, self.lins, self.norms, strict=True):
            x = norm(conv(x, edge_index) + lin(x)).relu()
            total = total + x / self.depth
        return self.dec(total)


class ReadoutSum(nn.Module):
    """Behind the last layer the first token is added to a weighted mean of the others, once."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.enc = nn.Linear(FEATURES, width)
        self.layers = layers(
            lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()), depth
        )
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(2 * width, 1)
        self.dec = nn.Linear(width, CLASSES)

    def readout(self, x: Tensor) -> Tensor:
        own, others = self.norm(x).split([1, x.size(1) - 1], 1)
        scores = self.score(torch.cat([own.expand_as(others), others], -1)).softmax(1)
        return self.dec(own[:, 0] + (scores * others).sum(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.readout(x)


class ReadoutSumByHand(ReadoutSum):
    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + layer(x) / self.depth
        return self.readout(x)


class FromZero(nn.Module):
    """A second stream begins with zeros, and is written to in the same loop."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.a = layers(lambda: nn.Linear(2 * width, width), depth)
        self.b = layers(lambda: nn.Linear(width, width), depth)
        self.dec = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        other = torch.zeros_like(x)
        for a, b in zip(self.a, self.b, strict=True):
            dx, more = torch.tanh(a(torch.cat([x, other], -1))), torch.tanh(b(x))
            x = x + dx
            other = other + more
        return self.dec(torch.cat([x, other], -1))


class FromZeroByHand(FromZero):
    first_too = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        other = torch.zeros_like(x)
        for i, (a, b) in enumerate(zip(self.a, self.b, strict=True)):
            dx, more = torch.tanh(a(torch.cat([x, other], -1))), torch.tanh(b(x))
            x = x + dx / len(self.a)
            other = other + (more / len(self.a) if i or self.first_too else more)
        return self.dec(torch.cat([x, other], -1))


class FromZeroFirstKept(FromZeroByHand):
    first_too = False


def _first_layer_fits(lab: Lab) -> None:
    """Scaled with 1/L, the first layer is in a branch like all others (SGD: L times the rate);
    left alone it is in none."""
    plan = lab.plan(optimizer="sgd")
    ratio = plan.params["b.0.weight"].lr / plan.params["b.1.weight"].lr
    try:
        computes(FromZeroByHand)(lab)
        wanted = 1.0
    except Wrong:
        computes(FromZeroFirstKept)(lab)
        wanted = 1.0 / lab.case.depth
    if abs(ratio / wanted - 1) > 0.01:
        raise Wrong(
            f"the first layer's sum is{'' if wanted == 1 else ' not'} scaled like the others, its "
            f"rate under SGD is {ratio:.3g} of theirs, must be {wanted:.3g}"
        )


class OnTheStream(nn.Module):
    """An activation behind every sum, and no norm on the stream."""

    def __init__(self, width: int, depth: int, act: nn.Module) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.layers = layers(
            lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)), depth
        )
        self.act = act
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = self.act(x + layer(x))
        return self.dec(x)


# --- connections that are put in, and sums that are no skips -------------------------------------


class VirtualNode(Stack):
    """No residual connections; a state for each graph is added to the nodes in every layer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.start = nn.Embedding(1, width)
        self.mix = layers(lambda: nn.Linear(width, width), depth - 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x, state = self.enc(x), self.start(batch.new_zeros(GRAPHS))
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = x + state[batch]
            before, x = x, conv(norm(x), edge_index).relu()
            if i < len(self.mix):
                state = self.mix[i](global_add_pool(before, batch) + state).relu()
        return self.dec(global_mean_pool(x, batch))


def _all_layers_or_said(lab: Lab) -> str | None:
    """L counts all layers and all get a connection, or the plan says that the depth is no size."""
    plan, depth = lab.plan(), lab.case.depth
    scaled = sum(b.count for b in plan.branches if b.factor != 1.0)
    if plan.depth == depth and scaled >= depth:
        return None
    text = lab.says(WIDTH_ONLY)
    if text is None:
        raise Silent(f"L = {plan.depth} and {scaled} scaled connections for {depth} layers")
    return text


class GATWithSkip(nn.Module):
    """GATConv(residual=True): a learned skip inside every layer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        first = GATConv(FEATURES, width // 4, heads=4, residual=True)
        more = (GATConv(width, width // 4, heads=4, residual=True) for _ in range(depth - 1))
        self.convs = nn.ModuleList([first, *more])
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.elu(conv(x, edge_index))
        return self.dec(x)


class TwoDirections(nn.Module):
    """Messages along the edges and against them, added: no skip in it."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.convs = layers(
            lambda: DirGNNConv(GCNConv(width, width), alpha=0.5, root_weight=False), depth
        )
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.dec(x)


class Chunks(nn.Module):
    """The difference of two halves of a layer's output, inside a branch."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.pair = layers(lambda: nn.Linear(width, 2 * width), depth)
        self.out = layers(lambda: nn.Linear(width, width), depth)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for pair, out in zip(self.pair, self.out, strict=True):
            q, k = pair(x).chunk(2, -1)
            x = x + out(torch.tanh(q - k))
        return self.dec(x)


class ChunksByHand(Chunks):
    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for pair, out in zip(self.pair, self.out, strict=True):
            q, k = pair(x).chunk(2, -1)
            x = x + out(torch.tanh(q - k)) / len(self.out)
        return self.dec(x)


NO_DEPTH = said(WIDTH_ONLY, "the depth has no limit, and the plan does not say so")


NOT_FOLLOWED = WIDTH_ONLY + r"|not (understood|recogni[sz]ed|followed|known)|unknown"


def _step(by_hand: type[nn.Module]) -> Check:
    """A residual step with its 1/L; or the forward pass is left alone, and the plan says so."""

    def check(lab: Lab) -> str | None:
        try:
            computes(by_hand)(lab)
            return depth_is_depth(lab)
        except Wrong as wrong:
            text = lab.says(NOT_FOLLOWED)
            if text is None:
                raise
            reason = wrong
        try:
            untouched(lab)
        except Wrong:
            raise reason from None
        return text

    return check


def _skip(name: str, what: str, model: type[Stack], by_hand: type[Stack]) -> Case:
    return Case(
        f"skip_by_{name}",
        f"{what}: a residual step all the same, times 1/L, and nothing is put in.",
        model,
        graph,
        (_step(by_hand),),
    )


def _cat(name: str, what: str, model: type[Stack], weight: str, example: object) -> Case:
    return Case(
        name,
        what,
        model,
        example,
        (rate(weight, -1, -1), scale(weight, -1 if weight == "dec.weight" else -0.5, -0.5)),
    )


def _pooled_graph() -> tuple[Tensor, Tensor, Tensor]:
    return *graph(), batch()


def _tokens() -> tuple[Tensor]:
    return (draw(10, 5, FEATURES),)


def _nodes() -> tuple[Tensor]:
    return (draw(NODES, FEATURES),)


CASES = [
    Case(
        "skip_plain",
        "x + branch(x): times 1/L at any depth.",
        PlainSkip,
        graph,
        (computes(PlainSkipByHand, (2, 3, 4, 6)), same_plan(depths=(2, 3, 4, 6)), trains()),
        passes_today=True,
    ),
    _skip("index", "x[index] + branch(x)[index]", IndexSkip, IndexSkipByHand),
    _skip("mask", "x[mask] + branch(x)[mask]", MaskSkip, IndexSkipByHand),
    _skip("roll", "x.roll(3, 0) + branch(x).roll(3, 0)", RollSkip, RollSkipByHand),
    _skip("flip", "x.flip(0) + branch(x).flip(0)", FlipSkip, FlipSkipByHand),
    _skip("pad", "F.pad(x) + branch(F.pad(x)), cut off again", PadSkip, PadSkipByHand),
    Case(
        "write_into_buffer",
        "buffer[index] = branch(x); x = x + buffer: a residual step.",
        BufferWrite,
        graph,
        (_step(BufferWriteByHand),),
    ),
    Case(
        "gate",
        "g * h + (1 - g) * x: left alone, and the plan says that it transfers in width only.",
        Gate,
        graph,
        (untouched, NO_DEPTH),
        passes_today=True,
    ),
    Case(
        "gate_of_difference",
        "x + g * (h - x) is the same function as a gate, so it gets the same plan.",
        GateOfDifference,
        graph,
        (_as_first_spelling, not_said("initial residual")),
    ),
    Case(
        "lstm_every_layer",
        "An LSTM cell behind every convolution: gates, so nothing is put in, and the plan says "
        "width only.",
        LSTMEveryLayer,
        graph,
        (untouched, NO_DEPTH),
    ),
    Case(
        "parallel_layers",
        "All convolutions read the same features: none is a step of a stream, so no connection "
        "is put round them, and the plan says width only.",
        ParallelLayers,
        graph,
        (untouched, NO_DEPTH),
    ),
    Case(
        "mean_of_states",
        "sum(states) / len(states) is a mean already: not divided by L once more.",
        MeanOfStates,
        graph,
        (computes(MeanOfStatesByHand, (2, 3, 4, 6)), trains("depth")),
    ),
    _cat(
        "cat_into_hidden",
        "All states concatenated into a hidden layer: its fan-in is L times the width, its rate "
        "1 / fan-in.",
        JumpingCat,
        "mix.weight",
        graph,
    ),
    _cat(
        "cat_into_head",
        "All states concatenated, pooled, dropout, a head of two layers.",
        JumpingCatHead,
        "mix.weight",
        _pooled_graph,
    ),
    Case(
        "sum_of_learned_skips",
        "Learned skips are left alone, the sum over the layers is divided by their number, for "
        "2, 3, 4 and 6 layers alike.",
        SumOfLearnedSkips,
        graph,
        (computes(SumOfLearnedSkipsByHand, (2, 3, 4, 6)), same_plan((32,), (2, 3, 4, 6))),
    ),
    Case(
        "readout_sum_once",
        "A sum behind the last layer happens once: no residual step, and L does not count it.",
        ReadoutSum,
        _tokens,
        (depth_is_depth, computes(ReadoutSumByHand)),
    ),
    Case(
        "stream_from_zeros",
        "A second stream begins with zeros: factor and rate of its first layer fit together.",
        FromZero,
        _nodes,
        (_first_layer_fits,),
    ),
    Case(
        "softplus_on_stream",
        "softplus(x + branch(x)) pushes the stream up L times: no limit in depth, to be said.",
        lambda width, depth: OnTheStream(width, depth, nn.Softplus()),
        _nodes,
        (said(WIDTH_ONLY + "|activation|softplus", "softplus acts on the stream L times"),),
    ),
    Case(
        "relu_on_stream",
        "relu(x + branch(x)) leaves what is positive alone: it transfers in depth.",
        lambda width, depth: OnTheStream(width, depth, nn.ReLU()),
        _nodes,
        (depth_is_depth, trains("depth")),
        passes_today=True,
    ),
    Case(
        "virtual_node_no_residuals",
        "A virtual node in a model without residual connections: all layers get one, or the plan "
        "says width only.",
        VirtualNode,
        _pooled_graph,
        (_all_layers_or_said,),
    ),
    Case(
        "gat_residual",
        "GATConv(residual=True) has learned skips: left alone, nothing put in, width only said.",
        GATWithSkip,
        graph,
        (not_said("no residual connections"), untouched, NO_DEPTH),
    ),
    Case(
        "two_directions",
        "Messages along the edges plus messages against them: there is no skip to speak of.",
        TwoDirections,
        graph,
        (not_said(r"learned skip|skips go through"),),
    ),
    Case(
        "difference_of_chunks",
        "q - k of two halves of one output is no merge of streams: not divided by 2.",
        Chunks,
        _nodes,
        (computes(ChunksByHand),),
    ),
]

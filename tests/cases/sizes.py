"""Which sizes grow: sizes that happen to be equal, sizes that are fixed, axes of convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    DenseSAGEConv,
    EGConv,
    GCNConv,
    GINConv,
    NNConv,
    SAGEConv,
    SuperGATConv,
    dense_diff_pool,
    global_add_pool,
)

from .kit import (
    CLASSES,
    FEATURES,
    GRAPHS,
    NODES,
    Case,
    alike,
    batch,
    draw,
    edges,
    either,
    graph,
    layers,
    only_divided,
    rate,
    role,
    same_plan,
    scale,
    trains,
)


class CatOfFeatures(nn.Module):
    """Hidden size and number of input features meet at width 16."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = SAGEConv(16, width)
        self.second = SAGEConv(2 * width, width)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()
        return self.dec(self.second(torch.cat([x, x.flip(0)], -1), edge_index).relu())


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        shape = (samples, tokens, self.heads, width // self.heads)
        q, k, v = (lin(x).view(shape).transpose(1, 2) for lin in (self.q, self.k, self.v))
        weights = (q @ k.transpose(2, 3) / (width // self.heads) ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(samples, tokens, width))


class Transformer(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.layers = layers(lambda: Attention(width), depth)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.dec(x)


class Molecules(nn.Module):
    """As many categories of atoms as there are graphs in the batch."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(GRAPHS, width)
        self.convs = layers(lambda: GINConv(nn.Linear(width, width)), depth)
        self.dec = nn.Linear(width, 1)

    def forward(self, kind: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.atoms(kind)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(global_add_pool(x, batch))


class DeepEnds(nn.Module):
    """Encoder and head are MLPs with inner sizes of twice the width."""

    def __init__(self, width: int, depth: int, columns: int, classes: int) -> None:
        super().__init__()
        self.enc = nn.Sequential(
            nn.Linear(columns, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.convs = layers(lambda: GCNConv(width, width), depth)
        self.dec = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, classes)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(x)


class Bottleneck(nn.Module):
    """Twenty-four units in the middle, however wide the model is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.down = nn.Linear(width, 24)
        self.up = nn.Linear(24, width)
        self.conv = GCNConv(width, width)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x).relu()
        return self.dec(x + self.conv(self.up(self.down(x).relu()), edge_index))


def _edge_network(out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 25), nn.ReLU(), nn.Linear(25, out))


class EdgeNetworks(nn.Module):
    """NNConv with 25 hidden units in its edge networks, however wide the model is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = NNConv(FEATURES, width, _edge_network(FEATURES * width), aggr="mean")
        self.second = NNConv(width, 2 * width, _edge_network(2 * width**2), aggr="mean")
        self.dec = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index, edge_attr))
        return self.dec(F.elu(self.second(x, edge_index, edge_attr)))


class SoftClusters(nn.Module):
    """Nodes of dense graphs are assigned to six clusters, and these to three; PyG's losses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.assign = nn.ModuleList([DenseSAGEConv(FEATURES, 6), DenseSAGEConv(width, 3)])
        self.embed = nn.ModuleList([DenseSAGEConv(FEATURES, width), DenseSAGEConv(width, width)])
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
        losses = []
        for assign, embed in zip(self.assign, self.embed, strict=True):
            made = embed(x, dense).relu(), dense, assign(x, dense)
            x, dense, links, entropy = dense_diff_pool(*made)
            losses += [links, entropy]
        return self.dec(x.mean(1)), sum(losses)


class ClusterLogits(nn.Module):
    """Six cluster logits a node, made from the features; clusters are pooled and mixed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.assign = nn.Linear(width, 6)
        self.mix = nn.Linear(width, width)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, dense: Tensor) -> Tensor:
        x = (dense @ self.enc(x)).relu()
        to = self.assign(x).softmax(-1)
        return self.dec(self.mix(to.transpose(1, 2) @ x).relu().mean(1))


def _dense_graphs() -> tuple[Tensor, Tensor]:
    dense = (draw(4, 14, 14, seed=1) > 0).float()
    return draw(4, 14, FEATURES), dense / dense.sum(-1, keepdim=True)


class Traffic(nn.Module):
    """(batch, channels, nodes, time): a convolution over time, then messages over the nodes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Conv2d(2, width, 1)
        self.convs = layers(lambda: nn.Conv2d(width, width, (1, 2)), depth)
        self.dec = nn.Conv2d(width, 12, 1)

    def forward(self, x: Tensor, dense: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            h = torch.einsum("bcnt,nm->bcmt", torch.tanh(conv(x)), dense)
            x = h + x[..., -h.size(3) :]
        return self.dec(x[..., -1:])


def _traffic() -> tuple[Tensor, Tensor]:
    dense = draw(9, 9, seed=1).softmax(0)
    return draw(4, 2, 9, 12), dense


class Transposed(nn.Module):
    """A transposed convolution as the last layer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.convs = layers(lambda: GCNConv(width, width), depth)
        self.dec = nn.ConvTranspose1d(width, CLASSES, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(x.t()[None])[0].t()


class DegreeScaler(nn.Module):
    """Two gains for each feature: one for the feature, one for it times the node's degree."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.convs = layers(lambda: GCNConv(width, width), depth)
        self.gains = nn.ParameterList(torch.randn(1, width, 2) for _ in range(depth))
        self.out = layers(lambda: nn.Linear(width, width), depth)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, degree: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, gain, out in zip(self.convs, self.gains, self.out, strict=True):
            h = conv(x, edge_index).relu()
            h = torch.stack([h, h * degree[:, None]], -1)
            x = x + out((h * gain).sum(-1))
        return self.dec(x)


class RawPlusLabels(nn.Module):
    """Known labels are embedded and added to the raw features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.labels = nn.Embedding(CLASSES, FEATURES)
        self.first = GCNConv(FEATURES, width)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, labels: Tensor, edge_index: Tensor) -> Tensor:
        return self.dec(self.first(x + self.labels(labels), edge_index).relu())


class ParallelEncoders(nn.Module):
    """One convolution for each of three relations, side by side; all outputs are returned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = layers(lambda: GCNConv(FEATURES, width), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> list[Tensor]:
        return [conv(x, edge_index).relu() for conv in self.convs]


class SuperGATLast(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = GCNConv(FEATURES, width)
        self.last = SuperGATConv(width, CLASSES, heads=8, concat=False, attention_type="MX")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index).relu(), edge_index)


class Bases(nn.Module):
    """EGConv: sixteen numbers a node, made from its features, weigh four bases in four heads."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.convs = layers(lambda: EGConv(width, width, num_heads=4, num_bases=4), depth)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(x)


class Atoms(nn.Module):
    """Categories drawn by xavier_uniform_, whose scale depends on the width."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(119, width)
        self.position = nn.Linear(3, width)
        self.convs = layers(lambda: GCNConv(width, width), depth)
        self.dec = nn.Linear(width, 1)
        nn.init.xavier_uniform_(self.atoms.weight)

    def forward(self, kind: Tensor, position: Tensor, edge_index: Tensor) -> Tensor:
        x = self.atoms(kind) + self.position(position)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(x)


class Latent(nn.Module):
    """An autoencoder that returns its latents, half as many as it is wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = GCNConv(FEATURES, width)
        self.last = GCNConv(width, width // 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index).relu(), edge_index)


def _categories(count: int) -> Tensor:
    return torch.arange(NODES) * 5 % count


CONV_ROLES = (
    role("enc.weight", "encoder data-in"),
    role("convs.*.weight", "residual width-to-width"),
    role("dec.weight", "decoder width-out"),
    rate("enc.weight", 0),
    rate("convs.*.weight", -1),
    rate("dec.weight", -1),
)

CASES = [
    Case(
        "features_equal_hidden",
        "16 input features: the model of width 16 has the same plan as all others.",
        lambda width, depth: CatOfFeatures(width),
        lambda: (draw(NODES, 16), edges()),
        (same_plan(), rate("first.lin_l.weight", 0, widths=(16, 64))),
    ),
    Case(
        "tokens_equal_heads",
        "Attention over four tokens with four heads: keys and values are width to width, as "
        "with five tokens.",
        Transformer,
        lambda: (draw(10, 4, FEATURES),),
        (
            role("layers.*.?.weight", "residual width-to-width"),
            rate("layers.*.?.weight", -1),
            trains(),
        ),
        depth=3,
    ),
    Case(
        "tokens_differ_from_heads",
        "The same with five tokens.",
        Transformer,
        lambda: (draw(10, 5, FEATURES),),
        (role("layers.*.?.weight", "residual width-to-width"), trains()),
        depth=3,
        passes_today=True,
    ),
    Case(
        "graphs_equal_categories",
        "As many graphs in the batch as categories of atoms: sum pooling is no message passing, "
        "and gamma is that of the layers.",
        Molecules,
        lambda: (_categories(GRAPHS), edges(), batch()),
        (only_divided("convs.*"),),
    ),
    Case(
        "features_equal_encoder_hidden",
        "32 input features, an encoder with 2 * width inside: the plan stays at width 16.",
        lambda width, depth: DeepEnds(width, depth, 32, CLASSES),
        lambda: (draw(NODES, 32), edges()),
        (same_plan(), rate("enc.0.weight", 0, widths=(16, 64))),
    ),
    Case(
        "fixed_inner_size",
        "A bottleneck of 24 units at every width: the layer behind it keeps its rate, or the "
        "plan asks which sizes grow.",
        lambda width, depth: Bottleneck(width),
        graph,
        (
            rate("down.weight", -1),
            either(rate("up.weight", 0), r"\b24\b|base=|no multiple"),
        ),
    ),
    Case(
        "fixed_inner_size_base",
        "The same beside a base, which shows that 24 does not grow.",
        lambda width, depth: Bottleneck(width),
        graph,
        (rate("down.weight", -1), rate("up.weight", 0)),
        base=32,
        passes_today=True,
    ),
    Case(
        "fixed_edge_network",
        "NNConv with 25 units in its edge networks: 25 is not the width of the model.",
        lambda width, depth: EdgeNetworks(width),
        lambda: (*graph(), draw(edges().size(1), 2)),
        (rate("dec.weight", -1), scale("dec.weight", -1)),
    ),
    Case(
        "nodes_are_no_width",
        "Dense pooling with a loss on links: the 14 nodes of a graph are no width.",
        lambda width, depth: SoftClusters(width),
        _dense_graphs,
        (
            role("embed.0.lin_*.weight", "encoder data-in"),
            role("embed.1.lin_*.weight", "any width-to-width"),
            role("dec.weight", "decoder width-out"),
            rate("dec.weight", -1),
            rate("embed.1.lin_*.weight", -1),
        ),
    ),
    Case(
        "cluster_logits",
        "Six cluster logits made from the features are fixed in number: the decoder's row.",
        lambda width, depth: ClusterLogits(width),
        _dense_graphs,
        (role("assign.weight", "any width-out"), scale("assign.weight", -1)),
    ),
    Case(
        "channels_first_2d",
        "Conv2d on (batch, channels, nodes, time), with time running out: the channels are the "
        "width, in the last layer too.",
        Traffic,
        _traffic,
        (*CONV_ROLES, trains()),
    ),
    Case(
        "transposed_conv",
        "A transposed convolution as decoder reads as many terms as the model is wide.",
        Transposed,
        graph,
        (
            role("dec.weight", "decoder width-out"),
            rate("dec.weight", -1),
            scale("dec.weight", -1),
        ),
    ),
    Case(
        "two_gains_a_feature",
        "(h * gain).sum(-1) over an axis of two keeps the features: the layer behind is width "
        "to width, the gains have no fan-in that grows.",
        DegreeScaler,
        lambda: (*graph(), torch.linspace(0.5, 1.5, NODES)),
        (
            role("out.*.weight", "residual width-to-width"),
            rate("out.*.weight", -1),
            rate("gains.*", 0),
            scale("gains.*", 0),
        ),
    ),
    Case(
        "raw_plus_label_embedding",
        "Raw features plus an embedding of labels are still 7 data features.",
        lambda width, depth: RawPlusLabels(width),
        lambda: (draw(NODES, FEATURES), _categories(CLASSES), edges()),
        (role("first.lin.weight", "encoder data-in"), rate("first.lin.weight", 0), trains()),
    ),
    Case(
        "parallel_encoders",
        "Three equal layers side by side on the same data have one role and one rate.",
        lambda width, depth: ParallelEncoders(width),
        graph,
        (alike("convs.*.lin.weight"),),
    ),
    Case(
        "supergat_last",
        "SuperGATConv with averaged heads as the last layer is the decoder.",
        lambda width, depth: SuperGATLast(width),
        graph,
        (
            role("last.lin.weight", "decoder width-out"),
            rate("last.lin.weight", -1),
            scale("last.lin.weight", -1),
        ),
    ),
    Case(
        "basis_weights",
        "EGConv's sixteen numbers are no matrix that grows: rate 1 / width, its bias constant.",
        Bases,
        graph,
        (rate("convs.*.comb_lin.weight", -1), rate("convs.*.comb_lin.bias", 0)),
    ),
    Case(
        "embedding_beside_base",
        "nn.Embedding drawn by xavier_uniform_, with a base: its scale is the base's at any width.",
        Atoms,
        lambda: (_categories(119), draw(NODES, 3), edges()),
        (scale("atoms.weight", 0, widths=(64, 512)), rate("atoms.weight", 0, widths=(64, 512))),
        base=64,
        depth=2,
    ),
    Case(
        "latents_beside_base",
        "Latents that grow, compared outside forward(): with a base the last layer is width to "
        "width, not a decoder.",
        lambda width, depth: Latent(width),
        graph,
        (scale("last.lin.weight", -0.5, widths=(32, 256)), rate("last.lin.weight", -1)),
        base=32,
        passes_today=True,
    ),
]

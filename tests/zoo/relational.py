"""Learned rows for every node: recommendation and knowledge graphs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from models import WIDTH_ONLY, D, Expect
from torch import Tensor, nn
from torch_geometric.utils import degree, scatter

from .entry import Entry, fields

USERS, NODES, RELATIONS = 12, 30, 4
DOT = "features is the decoder"


class LightGCN(nn.Module):
    """He et al.: embeddings of users and items, propagated without weights, mean over layers."""

    divided = False

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.n_layers = depth
        self.embedding_user = nn.Embedding(USERS, width)
        self.embedding_item = nn.Embedding(NODES - USERS, width)
        for table in (self.embedding_user, self.embedding_item):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, graph: Tensor, users: Tensor, items: Tensor) -> Tensor:
        all_emb = torch.cat([self.embedding_user.weight, self.embedding_item.weight])
        embs = [all_emb]
        for _ in range(self.n_layers):
            all_emb = torch.sparse.mm(graph, all_emb)
            embs.append(all_emb)
        light_out = torch.mean(torch.stack(embs, dim=1), dim=1)
        all_users, all_items = torch.split(light_out, [USERS, NODES - USERS])
        scores = (all_users[users] * all_items[items]).sum(dim=1)
        return scores / light_out.size(1) if self.divided else scores


class DividedLightGCN(LightGCN):
    """The same as the plan's warning has it."""

    divided = True


def purchases() -> tuple[Tensor, ...]:
    """The symmetric normalised graph between users and items, and pairs to be scored."""
    users, items = torch.arange(USERS).repeat(4), torch.arange(4 * USERS) * 7 % (NODES - USERS)
    ends = torch.cat([torch.stack([users, items + USERS]), torch.stack([items + USERS, users])], 1)
    value = degree(ends[0], NODES).clamp(min=1).pow(-0.5)
    graph = torch.sparse_coo_tensor(ends, value[ends[0]] * value[ends[1]], (NODES, NODES))
    return graph.coalesce(), users, items.roll(5)


class CompGCNConv(nn.Module):
    """Vashishth et al.: neighbours composed with relations, which get a matrix of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w_in, self.w_out, self.w_loop, self.w_rel = (
            nn.Parameter(nn.init.xavier_normal_(torch.empty(width, width))) for _ in range(4)
        )
        self.loop_rel = nn.Parameter(nn.init.xavier_normal_(torch.empty(1, width)))
        self.bn = nn.BatchNorm1d(width)

    def propagate(self, x: Tensor, rel: Tensor, edges: Tensor, kind: Tensor, w: Tensor) -> Tensor:
        src, dst = edges
        inverse = degree(dst, x.size(0)).clamp(min=1).pow(-0.5)
        message = (x[src] * rel[kind]) @ w * (inverse[src] * inverse[dst]).unsqueeze(-1)
        return scatter(message, dst, dim=0, dim_size=x.size(0), reduce="sum")

    def forward(self, x: Tensor, edges: Tensor, kind: Tensor, rel: Tensor) -> tuple[Tensor, Tensor]:
        in_res = self.propagate(x, rel, edges, kind, self.w_in)
        out_res = self.propagate(x, rel, edges.flip(0), kind + RELATIONS, self.w_out)
        loop_res = (x * self.loop_rel) @ self.w_loop
        out = (in_res + out_res + loop_res) * (1 / 3)
        return torch.tanh(self.bn(out)), rel @ self.w_rel


class CompGCN(nn.Module):
    """With DistMult as the score of all entities."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.init_embed = nn.Parameter(nn.init.xavier_normal_(torch.empty(NODES, width)))
        self.init_rel = nn.Parameter(nn.init.xavier_normal_(torch.empty(2 * RELATIONS, width)))
        self.convs = nn.ModuleList(CompGCNConv(width) for _ in range(depth))
        self.bias = nn.Parameter(torch.zeros(NODES))

    def forward(self, edge_index: Tensor, edge_type: Tensor, sub: Tensor, rel: Tensor) -> Tensor:
        x, r = self.init_embed, self.init_rel
        for conv in self.convs:
            x, r = conv(x, edge_index, edge_type, r)
        return (x[sub] * r[rel]) @ x.t() + self.bias


class NBFNet(nn.Module):
    """Zhu et al.: Bellman-Ford from the query's head; what it starts with is put in every layer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.query = nn.Embedding(RELATIONS, width)
        self.relations = nn.ModuleList(nn.Embedding(RELATIONS, width) for _ in range(depth))
        self.linears = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.mlp = nn.Sequential(
            nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1)
        )

    def forward(self, edge_index: Tensor, edge_type: Tensor, head: Tensor, rel: Tensor) -> Tensor:
        src, dst = edge_index
        query = self.query(rel)
        boundary = query.new_zeros(NODES, *query.shape)
        boundary[head, torch.arange(len(head))] = query
        hidden = boundary
        for relation, linear, norm in zip(self.relations, self.linears, self.norms, strict=True):
            message = hidden[src] * relation(edge_type).unsqueeze(1)
            update = scatter(message, dst, dim=0, dim_size=NODES, reduce="sum") + boundary
            update = F.relu(norm(linear(torch.cat([hidden, update], dim=-1))))
            hidden = update + hidden
        feature = torch.cat([hidden, query.expand(NODES, -1, -1)], dim=-1)
        return self.mlp(feature).squeeze(-1)


def queries() -> tuple[Tensor, ...]:
    """The graph with its kinds of edges, and pairs of a head and a relation."""
    found = fields()
    head, rel = torch.tensor([2, 13, 25, 8]), torch.tensor([0, 3, 1, 2])
    return found["edge_index"], found["edge_type"], head, rel


EMBEDDINGS = {"embedding_*.weight": "encoder data-in 1"}
"""All that LightGCN learns; its layers have no weights, so a residual connection has no place."""
MODELS = [
    Entry("LightGCN", LightGCN, purchases, Expect(
        EMBEDDINGS, depth=1, scaled=0, notes=WIDTH_ONLY, warnings=(DOT,)),
        depth_is_size=False, labels=True, warned=DOT),
    Entry("LightGCN, scores divided by D", DividedLightGCN, purchases, Expect(
        EMBEDDINGS, depth=1, scaled=0, notes=WIDTH_ONLY), depth_is_size=False, labels=True),
    Entry("CompGCN (DistMult)", CompGCN, queries, Expect({
        "init_embed": "encoder data-in 1",
        "init_rel": "encoder data-in 1",
        "convs.*.w_*": f"hidden width-to-width {D}",
        "convs.*.bn.*": "hidden vector",
    }, depth=1, scaled=0, left=("learned skip",), notes=WIDTH_ONLY, warnings=(DOT,)),
        depth_is_size=False, labels=True, warned=DOT),
    Entry("NBFNet", NBFNet, queries, Expect({
        "query.weight": "encoder data-in 1",
        "relations.*.weight": "residual data-in 1 n=1",
        "linears.*.weight": f"residual width-to-width {2 * D}",
        "norms.*": "residual vector",
        "mlp.0.weight": f"hidden width-to-width {2 * D}",
        "mlp.2.weight": f"decoder width-out {2 * D}",
    }, gamma=True), labels=True),
]  # fmt: skip

"""What states of models of the field are (blind batches 72 on), each in the smallest form: returned
as they are, kept in part, written out layer by layer, made by weights that are no parameters."""

from __future__ import annotations

import pytest
import torch
from test_field_made import DEPTH, EDGES, FEATURES, NODES, OUT, WIDTH, X, codes, planned, texts
from torch import Tensor, nn

from gnn_mup import apply_transfer

# -- weights that are no parameters ----------------------------------------------------------------


class PlainList(nn.Module):
    """Layers in a plain list (HGWaveNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.read, self.layers = (
            nn.Linear(WIDTH, WIDTH),
            [nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)],
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.dec(torch.relu(self.read(x)))


class PlainTable(nn.Module):
    """A table of nodes that is a plain attribute (MMGCN)."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.dec = torch.randn(NODES, WIDTH).requires_grad_(), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, edge_index: Tensor) -> Tensor:
        x = self.table
        for layer in self.layers:
            sent = layer(x)[edge_index[0]]
            x = x + torch.zeros_like(x).index_add(0, edge_index[1], sent)
        return self.dec(x)


def test_weights_that_are_no_parameters_are_named_and_keep_their_place() -> None:
    plan = planned(PlainList(), X)
    assert f"{2 * DEPTH} tensors that need gradients are no parameters" in texts(plan)
    assert plan.depth == DEPTH
    assert str(plan.params["read.weight"].kind) == "width-to-width"
    plan = planned(PlainTable(), EDGES)
    assert "1 tensors that need gradients are no parameters" in texts(plan)
    assert plan.depth == DEPTH
    assert {str(plan.params[f"layers.{i}.weight"].kind) for i in range(DEPTH)} == {"width-to-width"}
    assert "unknown-growth" not in codes(plan)


# -- states that are returned ----------------------------------------------------------------------


class Embedder(nn.Module):
    """A cell that several messages are passed with; its state is the output (GMN)."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.table = nn.Embedding(5, WIDTH), nn.Embedding(20, WIDTH)
        self.message, self.cell = nn.Linear(2 * WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 1)

    def forward(self, words: Tensor, edge_index: Tensor, kinds: Tensor) -> Tensor:
        x = self.table(words)
        for _ in range(3):
            sent = torch.relu(self.message(torch.cat([x[edge_index[0]], self.kinds(kinds)], -1)))
            x = self.cell(torch.zeros_like(x).index_add(0, edge_index[1], sent), x)
        return (torch.softmax(self.gate(x), 0) * x).sum(0, keepdim=True)


def test_a_gated_state_that_is_the_output_has_the_width() -> None:
    words = torch.arange(NODES)
    plan = planned(Embedder(), words, EDGES, torch.zeros(EDGES.size(1), dtype=torch.long))
    assert plan.width == WIDTH
    assert str(plan.params["cell.weight_hh"].kind) == "width-to-width"
    assert str(plan.params["message.weight"].kind) == "width-to-width"
    assert str(plan.params["gate.weight"].kind) == "width-out"
    assert {"no-decoder", "width-only"} <= codes(plan)


class Numbered(nn.Module):
    """Layers called ``lin1``, ``lin2``, ``lin3``, the last of which makes the output; all of them
    beside the same table."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(NODES, WIDTH))
        self.lin1, self.lin2 = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.lin3, self.lin4 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, out)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.lin1(x)) + self.table
        x = torch.relu(self.lin2(x)) + self.table
        x = torch.relu(self.lin3(x)) + self.table
        return self.lin4(x)


def test_a_table_that_is_added_layer_after_layer_is_an_initial_residual() -> None:
    plan = planned(Numbered(OUT), X)
    assert plan.depth == 1
    assert "initial residual" in texts(plan)
    assert not [b for b in plan.branches if b.factor != 1]


def test_a_last_layer_like_those_before_it_returns_features() -> None:
    assert str(planned(Numbered(WIDTH), X).params["lin4.weight"].kind) == "width-to-width"
    assert "no-decoder" in codes(planned(Numbered(WIDTH), X))
    assert str(planned(Numbered(OUT), X).params["lin4.weight"].kind) == "width-out"


# -- flows -----------------------------------------------------------------------------------------


class Coupling(nn.Module):
    """Some rows stay, and make the others anew; logarithms of what these are multiplied with are
    added up (MoFlow)."""

    def __init__(self, width: int, log: bool) -> None:
        super().__init__()
        self.log = log
        self.into = nn.ModuleList(nn.Linear(FEATURES, width) for _ in range(DEPTH))
        self.out = nn.ModuleList(nn.Linear(width, 2 * FEATURES) for _ in range(DEPTH))
        for i in range(DEPTH):
            mask = (torch.arange(NODES) % DEPTH != i).float()
            self.register_buffer(f"mask{i}", mask.unsqueeze(-1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(())
        for i in range(DEPTH):
            mask = self.get_buffer(f"mask{i}")
            kept = mask * x
            pair = self.out[i](torch.relu(self.into[i](kept.mean(0, keepdim=True))))
            scale, shift = pair.chunk(2, -1)
            scale = torch.sigmoid(scale)
            x = kept + (1 - mask) * (x + shift) * scale
            total = total + (torch.log(scale) if self.log else scale).sum()
        return x, total


@pytest.mark.parametrize("log", [True, False])
def test_rows_that_are_kept_are_a_gate_and_logarithms_are_added_up_as_they_are(log: bool) -> None:
    plan = planned(Coupling(WIDTH, log), X)
    assert plan.depth == 1
    assert "width-only" in codes(plan)
    scaled = [b.before.partition(" ")[0] for b in plan.branches if b.factor != 1]
    assert scaled == ([] if log else ["total"])


# -- blind batch 73 --------------------------------------------------------------------------------


class Normalised(nn.Module):
    """A weight with its own constant, and a constant of another sort behind it (Allegro)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.weight = nn.Parameter(torch.randn(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        scale = (2 / self.weight.size(0)) ** 0.5
        return (torch.relu(self.enc(x)) @ (self.weight * scale)) * 0.267


def test_a_layer_that_normalises_itself_does_so_with_its_own_constant() -> None:
    for width in (WIDTH, 2 * WIDTH):
        plan = planned(Normalised(width), X, base=(WIDTH, 1))
        scale = plan.params["weight"].init_factor
        assert scale == pytest.approx((WIDTH / width) ** 0.5)
        assert plan.params["weight"].lr_scale == pytest.approx((WIDTH / width) ** 0.5)


class Groups(nn.Module):
    """Messages of several groups of edges, divided by how many there were in all (DiffDock)."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.mean, self.enc, self.dec = mean, nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        out, count = torch.zeros(NODES, WIDTH), torch.zeros(NODES)
        for layer, (source, target) in zip(self.layers, edge_index.chunk(3, 1), strict=True):
            out += torch.zeros_like(out).index_add(0, target, layer(x)[source])
            count += torch.bincount(target, minlength=NODES)
        out = out / count.clamp(min=1)[:, None] if self.mean else out
        return self.dec(torch.relu(out))


@pytest.mark.parametrize("mean", [True, False])
def test_messages_of_several_groups_have_one_mean(mean: bool) -> None:
    divided = [m for m in planned(Groups(mean), X, EDGES).messages if m.factor != 1.0]
    assert len(divided) == (0 if mean else 1)


class Interaction(nn.Module):
    """A map of pairs, summed over features in a shape that cuts across the axes (MolTrans)."""

    def __init__(self) -> None:
        super().__init__()
        self.drug, self.protein = nn.Embedding(20, WIDTH), nn.Embedding(20, WIDTH)
        self.read = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(70, OUT))

    def forward(self, drug: Tensor, protein: Tensor) -> Tensor:
        d = self.drug(drug).unsqueeze(2).repeat(1, 1, protein.size(1), 1)
        p = self.protein(protein).unsqueeze(1).repeat(1, drug.size(1), 1, 1)
        pairs = (d * p).view(len(drug), -1, drug.size(1), protein.size(1)).sum(1)
        return self.read(pairs.unsqueeze(1))


def test_a_map_of_pairs_is_made_of_dot_products_whatever_its_shape_on_the_way() -> None:
    words = torch.arange(18).view(2, 9)
    plan = planned(Interaction(), words[:, :7], words)
    assert not plan.messages
    assert "undivided-attention" in codes(plan)
    assert f"dot product of {WIDTH} features" in texts(plan)


# -- blind batch 74 --------------------------------------------------------------------------------


class Sparse(nn.Module):
    """Attention of a sparse matrix, whose row sums are counted with a column of ones, on a table
    that is looked up as a whole and stands in a batch of one (VGNN, pyGAT)."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.table, self.dec = nn.Embedding(NODES, width), nn.Linear(width, OUT)
        self.layer, self.score = nn.Linear(width, width), nn.Parameter(torch.randn(1, 2 * width))

    def forward(self, edge_index: Tensor) -> Tensor:
        h = self.layer(self.table(torch.arange(NODES))).unsqueeze(0)
        both = torch.cat([h[:, edge_index[0]], h[:, edge_index[1]]], -1)[0]
        logits = nn.functional.leaky_relu(self.score.mm(both.t()).squeeze())
        weights = torch.exp(logits / h.size(-1) ** 0.5)
        matrix = torch.sparse_coo_tensor(edge_index, weights, (NODES, NODES))
        total = torch.sparse.mm(matrix, torch.ones(NODES, 1))
        total[total == 0] = 1
        return self.dec(torch.sparse.mm(matrix, h[0]).div_(total))


def test_attention_of_a_sparse_matrix_is_an_average_of_features() -> None:
    plan = planned(Sparse(), EDGES)
    assert all(m.factor == 1.0 for m in plan.messages)
    assert str(plan.params["layer.weight"].kind) == "width-to-width"


def test_logits_that_the_root_of_the_width_divides_have_a_larger_rate() -> None:
    rates = [
        planned(Sparse(width), EDGES, base=(WIDTH, 1)).params["score"].lr_scale
        for width in (WIDTH, 4 * WIDTH)
    ]
    assert rates[1] / rates[0] == pytest.approx(0.5)


class Contrast(nn.Module):
    """Dot products over a temperature, in a loss of the model's own."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.by = temperature
        self.enc, self.norm = nn.Linear(FEATURES, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.enc(x))
        return nn.functional.cross_entropy(x @ x.flip(0).t() / self.by, torch.arange(NODES))


@pytest.mark.parametrize("by", [5.0, WIDTH])
def test_a_temperature_is_no_power_of_the_width(by: float) -> None:
    told = codes(planned(Contrast(by), X))
    assert ("dot-product-decoder" in told) is (by == 5.0)


class Injected(nn.Module):
    """What a layer makes of the same features is added to the stream before every block
    (convolutional occupancy networks)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.code = nn.Linear(FEATURES, WIDTH), nn.Linear(3, WIDTH)
        self.put, self.layers = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)) for _ in range(2)
        )
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        x, code = self.enc(x), torch.relu(self.code(at))
        for put, layer in zip(self.put, self.layers, strict=True):
            x = x + put(code)
            x = x + layer(torch.relu(x))
        return self.dec(x)


def test_what_is_put_into_a_stream_again_and_again_is_divided_and_no_step() -> None:
    plan = planned(Injected(), X, torch.randn(NODES, 3))
    assert plan.depth == DEPTH
    assert {b.before for b in plan.branches if b.factor == 1 / DEPTH} == {
        "x + put(code)",
        "x + layer(torch.relu(x))",
    }


class OneHot(nn.Module):
    """A stream that begins with numbers made on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, kinds: Tensor) -> Tensor:
        x = torch.zeros(len(kinds), WIDTH).scatter(1, kinds.unsqueeze(1), 1.0)
        for layer in self.layers:
            x = x + layer(torch.relu(x))
        return self.dec(x)


def test_a_stream_that_begins_with_given_numbers_has_a_step_in_every_layer() -> None:
    assert planned(OneHot(), torch.arange(NODES)).depth == DEPTH


# -- blind batch 75 --------------------------------------------------------------------------------


class Segments(nn.Module):
    """A softmax over the edges of each node, whose sums two sparse matrices of ones collect and
    hand back (xERTE)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.score = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, 1)
        self.layer, self.dec = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, (source, target) = self.enc(x), edge_index
        weights = torch.exp(torch.tanh(self.score(x[source])))
        edges, ones = torch.arange(len(target)), torch.ones(len(target))
        to = torch.sparse_coo_tensor(torch.stack([target, edges]), ones, (NODES, len(target)))
        back = torch.sparse_coo_tensor(torch.stack([edges, target]), ones, (len(target), NODES))
        weights = weights / torch.sparse.mm(back, torch.sparse.mm(to, weights))
        return self.dec(torch.relu(torch.sparse.mm(to, weights * self.layer(x)[source])))


def test_a_softmax_by_sparse_matrices_of_ones_is_one() -> None:
    assert all(m.factor == 1.0 for m in planned(Segments(), X, EDGES).messages)


class Marginals(nn.Module):
    """Structured attention: marginals of a tree, by the inverse of a Laplacian (LSR)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        weights = torch.exp(torch.tanh(self.a(x) @ self.b(x).t() / WIDTH))
        laplacian = torch.diag_embed(weights.sum(0) + 1) - weights
        return self.dec(torch.relu((weights * torch.inverse(laplacian).t()) @ x))


def test_what_an_inverse_normalises_has_no_gamma() -> None:
    assert all(m.factor == 1.0 for m in planned(Marginals(), X).messages)


class Triples(nn.Module):
    """Products of three vectors, divided by the root of the width three times (SPANet)."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power, self.enc = power, nn.Linear(FEATURES, WIDTH)
        self.sides = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        a, b, c = (side(x) for side in self.sides)
        out = torch.einsum("id,jd,kd->ijk", a, b, c) / x.size(-1) ** self.power
        return (out + out.transpose(0, 1)) / 2


@pytest.mark.parametrize(("power", "words"), [(1.5, "more than"), (1.0, ""), (0.0, "nothing")])
def test_a_decoder_that_more_than_its_number_divides_falls(power: float, words: str) -> None:
    told = [t for t in texts(planned(Triples(power), X)).split("\n") if "dot-product" in t]
    assert len(told) == bool(words)
    assert words in "".join(told)


# -- gains on the stream ---------------------------------------------------------------------------


class Gains(nn.Module):
    """``u * x + f(x)``, where u begins as one and is learned (PhysNet, soft gates of FNO)."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.gains = nn.ParameterList(torch.ones(WIDTH) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for gain, layer in zip(self.gains, self.layers, strict=True):
            x = gain * x + layer(torch.relu(x))
        return self.dec(x)


def _moved_by_gains(depth: int, power: float) -> float:
    """How far three steps of all gains move the output; their rates times a power of the depth."""
    changes = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = Gains(depth)
        rate = apply_transfer(model, (X,), base=(WIDTH, 4)).plan.params["gains.1"].lr_scale
        optimizer = torch.optim.Adam(
            model.gains.parameters(), lr=0.01 * rate * (depth / 4) ** power
        )
        before = model(X).detach()
        for _ in range(3):
            optimizer.zero_grad()
            model(X).mean().backward()
            optimizer.step()
        changes.append((model(X) - before).square().mean().sqrt().item())
    return sum(changes) / len(changes)


@pytest.mark.parametrize(("power", "least", "most"), [(0, 0.7, 1.4), (1, 4, 30), (-1, 0, 0.25)])
def test_rates_of_gains_on_the_stream_go_like_one_over_the_depth(
    power: int, least: float, most: float
) -> None:
    assert least < _moved_by_gains(32, power) / _moved_by_gains(4, power) < most


class PerEdge(nn.Module):
    """An energy of every edge, collected at the nodes and added up."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        energy = self.dec(torch.relu(self.enc(x))[edge_index[0]]).squeeze(-1)
        return torch.zeros(NODES).index_add(0, edge_index[1], energy).sum()


def test_numbers_that_are_collected_and_added_up_are_pooled() -> None:
    assert ".sum()': sum pooling" in texts(planned(PerEdge(), X, EDGES))


class Solver(nn.Module):
    """An integrator's steps, between times that are given (STG-NCDE)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        x = self.enc(x)
        for i in range(len(times) - 1):
            x = x + torch.tanh(self.layer(x)) * (times[i + 1] - times[i])
        return self.dec(x)


def test_steps_of_an_integrator_are_no_layers() -> None:
    plan = planned(Solver(), X, torch.linspace(0, 2, 6))
    assert plan.depth == 1
    assert not [b for b in plan.branches if b.factor != 1]


# -- blind batch 77 --------------------------------------------------------------------------------


class Tables(nn.Module):
    """Tables that square matrices read, returned as they are after all (GFormer)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(NODES, WIDTH))
        self.q, self.k, self.v = (nn.Parameter(torch.randn(WIDTH, WIDTH) / 5) for _ in range(3))

    def forward(self, edge_index: Tensor) -> Tensor:
        ends = self.table[edge_index[0]], self.table[edge_index[1]]
        logits = ((ends[0] @ self.q) * (ends[1] @ self.k)).sum(-1, keepdim=True)
        weights = torch.exp(logits.clamp(-10, 10))
        total = torch.zeros(NODES, 1).index_add(0, edge_index[0], weights)
        sent = weights / (total[edge_index[0]] + 1e-8) * (ends[1] @ self.v)
        return self.table + torch.zeros_like(self.table).index_add(0, edge_index[0], sent)


def test_tables_that_square_matrices_read_have_the_width_where_they_are_the_output() -> None:
    plan = planned(Tables(), EDGES)
    assert plan.width == WIDTH
    assert {str(plan.params[n].kind) for n in "qkv"} == {"width-to-width"}
    assert {"no-decoder", "undivided-attention"} <= codes(plan)


class PairsOfFeatures(nn.Module):
    """A decoder on pairs of features, of two kinds side by side (BACPI)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, width), nn.Linear(FEATURES, width)
        self.dec = nn.Linear(2 * width * width, OUT)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.tanh(self.a(x)), torch.tanh(self.b(x))
        one = (a.unsqueeze(2) * b.unsqueeze(1)).flatten(1)
        other = (a.unsqueeze(2) * a.unsqueeze(1)).flatten(1)
        return self.dec(torch.cat([one, other], -1))


def test_a_layer_on_pairs_of_features_has_the_square_of_the_width() -> None:
    plans = [planned(PairsOfFeatures(width), X, base=(WIDTH, 1)) for width in (WIDTH, 2 * WIDTH)]
    rates, scales = ([getattr(p.params["dec.weight"], name) for p in plans]
                     for name in ("lr_scale", "init_after"))  # fmt: skip
    assert rates[1] / rates[0] == pytest.approx(1 / 4)
    assert scales[1] / scales[0] == pytest.approx(1 / 4, rel=0.05)


def test_an_empty_tensor_that_is_no_layer_does_not_stop_the_plan() -> None:
    model = PairsOfFeatures(WIDTH)
    model.places = nn.Parameter(torch.zeros(0, WIDTH))
    assert not planned(model, X).params["places"].used


# -- blind batch 78 --------------------------------------------------------------------------------


class Halves(nn.Module):
    """The output is two halves side by side, mixed with what a layer makes of the data (RPR)."""

    def __init__(self) -> None:
        super().__init__()
        self.names = nn.Linear(FEATURES, 2 * WIDTH)
        self.enc = nn.ModuleList(nn.Linear(FEATURES, WIDTH) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        sides = [out(torch.relu(enc(x))) for enc, out in zip(self.enc, self.out, strict=True)]
        return 0.3 * self.names(x) + 0.7 * torch.cat(sides, -1)


def test_features_side_by_side_that_are_returned_have_the_width() -> None:
    plan = planned(Halves(), X)
    assert str(plan.params["names.weight"].kind) == "data-in"
    assert {str(plan.params[f"out.{i}.weight"].kind) for i in range(2)} == {"width-to-width"}
    assert "no-decoder" in codes(plan)


class FirstAgain(nn.Module):
    """A stream that its first features are added to in every layer, too (EPiC)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = first = torch.relu(self.enc(x))
        for layer in self.layers:
            x = x + layer(torch.relu(x))
            x = x + first
        return self.dec(x)


def test_first_features_that_are_added_again_are_divided_and_no_step() -> None:
    plan = planned(FirstAgain(), X)
    assert plan.depth == DEPTH
    assert {b.factor for b in plan.branches} == {1 / DEPTH}

"""Base shapes: what grows, which tensor belongs to which, and files that must not be trusted."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from pathlib import Path

import mup
import pytest
import torch
import torch_geometric.nn as pyg
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gnn_mup.base import files as shapefile
from gnn_mup.base import initial, safe_yaml
from gnn_mup.base.matching import How, counterparts
from gnn_mup.base.shapes import (
    BaseShapes,
    BaseTensor,
    initial_rms,
    load_base_shapes,
    make_base_shapes,
    save_base_shapes,
    tensor_rms,
)
from gnn_mup.errors import BaseShapeError

DATA, OUT = 11, 7


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def gcn(width: int, depth: int) -> nn.Module:
    return pyg.GCN(DATA, width, depth, OUT, norm="batch_norm")


class Block(nn.Module):
    """A convolution and an MLP inside a list: the numbers 0 and 2 repeat nothing."""

    def __init__(self, width: int, mlps: int = 1) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(width, width)
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(mlps)
        )


class Net(nn.Module):
    def __init__(self, width: int, depth: int, mlps: int = 1) -> None:
        super().__init__()
        self.encoder = nn.Linear(DATA, width)
        self.blocks = nn.ModuleList(Block(width, mlps) for _ in range(depth))
        self.decoder = nn.Linear(width, OUT)


def flat(width: int, depth: int) -> nn.Module:
    """Linear, norm, activation, Linear, ... in one list, as many people write it."""
    sizes = [DATA, *[width] * (depth - 1), OUT]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


def flat_to_the_end(width: int, depth: int) -> nn.Module:
    """As `flat`, with a norm behind the last layer too: it is the last of its own kind."""
    whole = flat(width, depth)
    return nn.Sequential(*whole, nn.BatchNorm1d(OUT))


def named(width: int, depth: int) -> nn.Module:
    """A list by name: PyG's Sequential calls its elements module_0, module_1, ..."""
    sizes = [DATA, *[width] * (depth - 1), OUT]
    model = nn.Module()
    for i, (before, after) in enumerate(itertools.pairwise(sizes)):
        model.add_module(f"module_{i}", pyg.GCNConv(before, after))
    return model


def first_differs(width: int, depth: int) -> nn.Module:
    """The first layer has a projection that the others lack."""
    first = nn.ModuleDict({"lin": nn.Linear(DATA, width), "proj": nn.Linear(DATA, width)})
    rest = [width] * (depth - 2) + [OUT]
    return nn.ModuleList([first, *(nn.ModuleDict({"lin": nn.Linear(width, n)}) for n in rest)])


# ---- what grows ---------------------------------------------------------------------------


def test_sizes_that_differ_grow() -> None:
    made = make_base_shapes(nn.Linear(DATA, 64), nn.Linear(DATA, 96))
    assert made.tensors["weight"].shape == (64, DATA)
    assert made.tensors["weight"].grows == (True, False)
    assert made.tensors["bias"].grows == (True,)
    assert (made.depth, made.width, made.gamma, made.inserted) == (None, None, None, False)


def test_keywords_are_recorded_and_saved(tmp_path: Path) -> None:
    made = make_base_shapes(
        gcn(8, 2),
        gcn(12, 2),
        tmp_path / "gcn.bsh",
        depth=8,
        width=64,
        gamma={"convs.0": 2.5},
        inserted=True,
        branches={"edge.weight": 8},
        adds_per_block=1.5,
    )
    assert (made.depth, made.width, made.gamma) == (8, 64, {"convs.0": 2.5})
    assert (made.inserted, made.branches, made.adds_per_block) == (True, {"edge.weight": 8}, 1.5)
    assert load_base_shapes(tmp_path / "gcn.bsh") == made


@pytest.mark.parametrize(("depth", "delta_depth"), [(3, 3), (3, 6), (6, 3), (5, 2), (2, 5)])
@pytest.mark.parametrize("build", [gcn, Net, flat, flat_to_the_end, named, first_differs])
def test_a_delta_of_another_depth_says_the_same(build, depth: int, delta_depth: int) -> None:
    same = make_base_shapes(build(16, depth), build(24, depth))
    other = make_base_shapes(build(16, depth), build(24, delta_depth))
    assert {n: t.grows for n, t in other.tensors.items()} == {
        n: t.grows for n, t in same.tensors.items()
    }


@pytest.mark.parametrize(
    ("base", "delta"),
    [
        (nn.Linear(4, 8), nn.Linear(4, 8)),
        (gcn(16, 2), gcn(16, 2)),
        (Net(16, 2), Net(16, 4)),
    ],
)
def test_no_growing_dimension_is_an_error(base: nn.Module, delta: nn.Module) -> None:
    with pytest.raises(BaseShapeError, match=r"No dimension grows.*width=96"):
        make_base_shapes(base, delta)


def test_all_mismatches_are_named_at_once() -> None:
    base = nn.ModuleDict({"a": nn.Linear(4, 8), "b": nn.Linear(4, 8), "d": nn.LayerNorm(8)})
    delta = nn.ModuleDict({"a": nn.Linear(4, 12), "c": nn.Linear(4, 8), "d": nn.Linear(8, 8)})
    with pytest.raises(BaseShapeError) as caught:
        make_base_shapes(base, delta)
    text = str(caught.value)
    assert "b.weight [8, 4]: the delta has nothing at this place" in text
    assert "c.weight [8, 4]: only the delta has it" in text
    assert "d.weight [8]: the delta has d.weight [8, 8]" in text
    assert "a.weight" not in text


def test_a_base_of_one_layer_beside_a_deeper_delta_is_refused() -> None:
    with pytest.raises(BaseShapeError, match=r"convs\.0\.lin\.weight \[7, 11\]"):
        make_base_shapes(gcn(16, 1), gcn(24, 3))


def test_lazy_layers_are_named() -> None:
    lazy = nn.Sequential(nn.Linear(4, 8), pyg.Linear(-1, 8))
    with pytest.raises(BaseShapeError, match=r"(?s)base cannot.*1\.weight.*once on an example"):
        make_base_shapes(lazy, nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8)))
    with pytest.raises(BaseShapeError, match="delta cannot"):
        make_base_shapes(nn.Sequential(nn.Linear(4, 8)), lazy)


def test_no_parameters_and_empty_tensors() -> None:
    with pytest.raises(BaseShapeError, match="ReLU has no parameters"):
        make_base_shapes(nn.ReLU(), nn.ReLU())
    hollow = nn.Module()
    hollow.weight = nn.Parameter(torch.zeros(0, 4))
    with pytest.raises(BaseShapeError, match=r"weight \[0, 4\]: it is empty"):
        make_base_shapes(hollow, hollow)


# ---- initial scale ------------------------------------------------------------------------


def test_rms_is_about_zero() -> None:
    assert tensor_rms(torch.full((3, 3), -2.0)) == 2.0
    assert tensor_rms(torch.tensor([5.0])) == 5.0
    assert tensor_rms(torch.tensor(-3.0)) == 3.0
    assert tensor_rms(torch.zeros(4, 4)) == 0.0
    assert tensor_rms(torch.tensor([[3 + 4j]])) == 5.0
    assert tensor_rms(torch.empty(4, 4, device="meta")) is None


def test_zero_blocks_and_padding_rows_are_left_out() -> None:
    packed = torch.ones(9, 4)
    packed[3:6] = 0.0
    assert tensor_rms(packed) == 1.0
    assert tensor_rms(packed.T.contiguous()) == 1.0
    assert tensor_rms(torch.stack([packed, torch.zeros(9, 4)])) == 1.0
    padded = torch.ones(5, 2)
    padded[1] = 100.0
    assert tensor_rms(padded, padding_idx=1) == 1.0


def test_scattered_zeros_count() -> None:
    # An identity has RMS 1/sqrt(n), which is what the rule of width to width asks of it.
    assert tensor_rms(torch.eye(16)) == pytest.approx(0.25)


def naive_rms(tensor: torch.Tensor, padding_idx: int | None) -> float:
    """The definition, on a copy: without the padding row, without zero slices of any axis."""
    values = tensor.double()
    if padding_idx is not None:
        values = torch.cat([values[:padding_idx], values[padding_idx + 1 :]])
    for axis in range(values.dim()):
        slices = [one for one in values.unbind(axis) if bool(one.any())]
        if not slices:
            return 0.0
        values = torch.stack(slices, axis)
    return float(values.square().mean().sqrt())


@pytest.mark.parametrize("piece", [1, 7, 50, 2**14])
@pytest.mark.parametrize("padding_idx", [None, 0, 4])
@pytest.mark.parametrize("shape", [(9,), (9, 8), (5, 40), (6, 1, 30), (7, 3, 2, 5)])
def test_rms_by_pieces_is_the_rms(monkeypatch, shape, padding_idx, piece: int) -> None:
    monkeypatch.setattr(initial, "_PIECE", piece)
    tensor = torch.randn(shape) * (torch.rand(shape) < 0.7)
    for axis, size in enumerate(shape):
        if size > 1:
            tensor.select(axis, size // 2).zero_()
    for one in (tensor, tensor.half(), torch.zeros(shape)):
        expected = pytest.approx(naive_rms(one, padding_idx), rel=1e-12)
        assert tensor_rms(one, padding_idx) == expected
        # Not contiguous; the padding row stays on axis 0.
        swapped = one.movedim(0, -1).contiguous().movedim(-1, 0)
        assert tensor_rms(swapped, padding_idx) == expected


def test_rms_of_nothing_and_of_nan() -> None:
    assert tensor_rms(torch.ones(0, 3)) == 0.0
    assert tensor_rms(torch.ones(1, 3), padding_idx=0) == 0.0
    assert math.isnan(tensor_rms(torch.tensor([[math.nan, 0.0], [0.0, 0.0]])))
    assert tensor_rms(torch.tensor([[math.nan], [2.0]]), padding_idx=0) == 2.0


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor made, other than views of one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.own, self.bytes = tensor.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() != self.own:
            self.bytes = max(self.bytes, made.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("shape", [(4096, 4096), (2**24,), (16, 2**20), (2**20, 16), (1, 8, 2**21)])
def test_rms_of_a_large_tensor_needs_little_memory(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    with Largest(tensor) as largest:
        found = tensor_rms(tensor)
    assert 0 < largest.bytes <= 0.01 * tensor.nbytes
    assert found == pytest.approx(float(tensor.double().square().mean().sqrt()), rel=1e-6)


def test_padding_row_of_an_embedding_also_when_tied() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(40, 8, padding_idx=3), "read": nn.Linear(8, 40)})
    with torch.no_grad():
        model["table"].weight[3] = 1e6
    assert initial_rms(model)["table.weight"] == pytest.approx(1.0, rel=0.2)
    model["read"].weight = model["table"].weight
    assert initial_rms(model)["table.weight"] == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize(
    ("build", "nominal"),
    [
        (lambda: nn.Linear(4, 8), 12**-0.5),
        (lambda: pyg.Linear(4, 8), 12**-0.5),
        (lambda: pyg.Linear(4, 8, weight_initializer="glorot"), (2 / 12) ** 0.5),
        (lambda: nn.Embedding(4, 8), 1.0),
        (lambda: nn.Linear(1, 1), 3**-0.5),
        (lambda: nn.Linear(1, 4), 3**-0.5),
    ],
)
def test_few_elements_give_the_nominal_scale(build, nominal: float) -> None:
    found = [initial_rms(build())["weight"] for _ in range(100)]
    assert sum(rms == pytest.approx(nominal, rel=1e-12) for rms in found) >= 95


@pytest.mark.parametrize(
    ("build", "name", "nominal"),
    [
        (lambda: pyg.GATConv(8, 4, heads=2), "att_src", (2 / (2 + 4)) ** 0.5),
        (lambda: pyg.RGCNConv(8, 16, 5, num_bases=3), "comp", (2 / (5 + 3)) ** 0.5),
        (lambda: nn.Conv1d(3, 5, 2), "weight", (3 * 6) ** -0.5),
        (lambda: nn.GRU(3, 4), "weight_ih_l0", (3 * 4) ** -0.5),
    ],
)
def test_few_elements_of_any_library_layer_are_drawn_again(build, name, nominal: float) -> None:
    found = [initial_rms(build())[name] for _ in range(100)]
    usual = max(set(found), key=found.count)
    assert found.count(usual) >= 85
    assert usual == pytest.approx(nominal, rel=0.1)


def test_drawing_again_changes_nothing_and_leaves_other_layers_alone() -> None:
    class Mine(pyg.GATConv):
        def reset_parameters(self) -> None:
            assert not hasattr(self, "built"), "a user's own layer was drawn"
            super().reset_parameters()

    layer, mine = pyg.GATConv(8, 4, heads=2), Mine(8, 4, heads=2)
    mine.built = True
    state, before = torch.get_rng_state(), layer.att_src.clone()
    assert initial_rms(layer) == initial_rms(layer)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(layer.att_src, before)
    assert initial_rms(mine)["att_src"] == tensor_rms(mine.att_src)


def test_an_initialiser_of_its_own_is_measured() -> None:
    lin, gat = nn.Linear(4, 8), pyg.GATConv(8, 4, heads=2)
    with torch.no_grad():
        lin.weight.fill_(5.0)
        gat.att_src.fill_(5.0)
    assert initial_rms(lin)["weight"] == 5.0
    assert initial_rms(gat)["att_src"] == 5.0


def test_nan_is_named() -> None:
    lin = nn.Linear(4, 8)
    with torch.no_grad():
        lin.weight[0, 0] = math.nan
    with pytest.raises(BaseShapeError, match="weight: it holds nan"):
        make_base_shapes(lin, nn.Linear(4, 12))


def test_meta_device_has_no_scale() -> None:
    with torch.device("meta"):
        base, delta = gcn(8, 2), gcn(12, 2)
    assert all(t.rms is None for t in make_base_shapes(base, delta).tensors.values())
    assert all(t.rms is not None for t in make_base_shapes(gcn(8, 2), delta).tensors.values())


# ---- which belongs to which ---------------------------------------------------------------


def test_matched_speaks_mup() -> None:
    base = BaseShapes({"w": BaseTensor((16, 11), (True, False), 0.5)})
    matched = base.match({"w": (64, 11)})["w"]
    assert isinstance(matched.infshape, mup.InfShape)
    assert matched.infshape == mup.InfShape([mup.InfDim(16, 64), mup.InfDim(None, 11)])
    assert (matched.base_name, matched.rms) == ("w", 0.5)
    assert matched.grows == (True, False)
    assert (matched.ratio(0), matched.ratio(1), matched.ratio(-1)) == (4.0, 1.0, 1.0)
    assert not matched.unchanged
    assert base.match({"w": (16, 11)})["w"].unchanged


def test_at_base_size_nothing_changes() -> None:
    base = make_base_shapes(Net(16, 3), Net(24, 3))
    for name, matched in base.match(shapes_of(Net(16, 3))).items():
        assert matched.unchanged
        assert matched.base_name == name
    assert all(m.unchanged for m in base.match(shapes_of(Net(16, 9))).values())


ARCHITECTURES = {
    "gcn": gcn,
    "gin": lambda w, d: pyg.GIN(DATA, w, d, OUT, norm="batch_norm"),
    "gat": lambda w, d: pyg.GAT(DATA, w, d, OUT, v2=True, heads=4),
    "sage": lambda w, d: pyg.GraphSAGE(DATA, w, d, OUT, jk="max"),
    "edge": lambda w, d: pyg.EdgeCNN(DATA, w, d, OUT),
    "blocks": Net,
    "flat": flat,
    "flat_to_the_end": flat_to_the_end,
    "named": named,
    "first_differs": first_differs,
}


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("target_depth", [2, 4, 9])
@pytest.mark.parametrize("build", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_another_depth_gives_what_the_same_depth_would(build, depth, target_depth) -> None:
    """The truth is a base of the target's own depth, where names match as they are."""
    target = shapes_of(build(64, target_depth))
    found = make_base_shapes(build(16, depth), build(24, depth)).match(target)
    truth = make_base_shapes(build(16, target_depth), build(24, target_depth)).match(target)
    assert {n: list(m.infshape) for n, m in found.items()} == {
        n: list(m.infshape) for n, m in truth.items()
    }
    for name, matched in found.items():
        if matched.rms and matched.grows == (True, True):
            assert matched.rms == pytest.approx(truth[name].rms, rel=0.2)


def test_first_middle_last() -> None:
    have = {f"convs.{i}.w": (8, 8) for i in range(4)}
    found = counterparts({f"convs.{i}.w": (8, 8) for i in range(10)}, have)
    assert [place.names[0][6] for place in found.values()] == list("0111122223")
    assert {place.how for place in found.values()} == {How.SURE}


def test_a_middle_is_combined_from_first_and_last() -> None:
    base = BaseShapes(
        {
            "convs.0.w": BaseTensor((64, DATA), (True, False), (3 * DATA) ** -0.5),
            "convs.1.w": BaseTensor((OUT, 64), (False, True), (3 * 64) ** -0.5),
        }
    )
    found = base.match({"convs.0.w": (256, DATA), "convs.1.w": (256, 128), "convs.2.w": (OUT, 128)})
    middle = found["convs.1.w"]
    assert list(middle.infshape) == [mup.InfDim(64, 256), mup.InfDim(64, 128)]
    # torch's own initialiser depends on the fan-in alone, so the middle is like the last.
    assert middle.rms == pytest.approx((3 * 64) ** -0.5, rel=1e-12)
    assert middle.base_name in base.tensors


def test_a_middle_whose_width_happens_to_be_the_data_size() -> None:
    """With D == n0 the first layer's pattern seems to fit; the width still grows."""
    base = make_base_shapes(gcn(16, 2), gcn(24, 2))
    found = base.match(shapes_of(gcn(DATA, 4)))
    assert found["convs.1.lin.weight"].grows == (True, True)
    assert found["convs.1.lin.weight"].ratio(1) == DATA / 16


def test_a_middle_like_the_first_takes_it() -> None:
    base = BaseShapes(
        {
            "c.0.att": BaseTensor((1, 4, 8), (False, False, True), 0.3),
            "c.1.att": BaseTensor((1, 1, OUT), (False, False, False), 0.4),
        }
    )
    found = base.match({f"c.{i}.att": (1, 4, 32) for i in range(3)} | {"c.3.att": (1, 1, OUT)})
    assert found["c.2.att"].base_name == "c.0.att"
    assert found["c.2.att"].rms == 0.3
    assert found["c.2.att"].ratio(2) == 4.0


def test_the_only_layer_is_first_and_last() -> None:
    base = make_base_shapes(gcn(16, 3), gcn(24, 3))
    found = base.match({"convs.0.lin.weight": (OUT, DATA), "convs.0.bias": (OUT,)})
    assert found["convs.0.lin.weight"].grows == (False, False)
    assert found["convs.0.bias"].grows == (False,)
    alone = make_base_shapes(Net(16, 3), Net(24, 3)).match(shapes_of(Net(64, 1)))
    assert alone["blocks.0.conv.lin_l.weight"].grows == (True, True)


def test_nested_lists_of_other_lengths() -> None:
    base = make_base_shapes(Net(16, 3, mlps=2), Net(24, 3, mlps=2))
    found = base.match(shapes_of(Net(64, 6, mlps=4)))
    assert found["blocks.5.mlps.3.0.weight"].base_name == "blocks.2.mlps.1.0.weight"
    up, down = found["blocks.2.mlps.1.0.weight"], found["blocks.2.mlps.1.2.weight"]
    assert (up.infshape.base_shape(), down.infshape.base_shape()) == ([32, 16], [16, 32])


def test_layers_that_alternate_in_one_list_go_to_their_like() -> None:
    def build(width: int, blocks: int) -> nn.Module:
        pair = [(width, 2 * width), (2 * width, width)]
        return nn.Sequential(*(nn.Linear(*size) for _ in range(blocks) for size in pair))

    found = make_base_shapes(build(16, 3), build(24, 3)).match(shapes_of(build(64, 8)))
    assert {m.ratio(0) for m in found.values()} == {4.0}
    assert all(m.ratio(1) == 4.0 for n, m in found.items() if n.endswith("weight"))


def test_same_numbers_match_by_number() -> None:
    """Two Linears of a block are no repeated list: widths may cross between them."""
    build = lambda a, b: nn.Sequential(nn.Linear(DATA, a), nn.ReLU(), nn.Linear(a, b))  # noqa: E731
    found = make_base_shapes(build(16, 8), build(24, 12)).match(shapes_of(build(32, 64)))
    assert found["0.weight"].ratio(0) == 2.0
    assert (found["2.weight"].ratio(0), found["2.weight"].ratio(1)) == (8.0, 2.0)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda n: f"module.{n}",
        lambda n: f"_orig_mod.{n}",
        lambda n: f"module._orig_mod.{n}",
        lambda n: n.replace("blocks.", "blocks._fsdp_wrapped_module."),
    ],
)
def test_wrappers_are_seen_through(wrap) -> None:
    base = make_base_shapes(Net(16, 2), Net(24, 2))
    target = {wrap(name): shape for name, shape in shapes_of(Net(32, 4)).items()}
    found = base.match(target)
    assert found.keys() == target.keys()
    assert found[wrap("decoder.weight")].base_name == "decoder.weight"


def test_names_that_mup_would_eat() -> None:
    """mup strips the letters of "module." off both ends of a name."""
    assert "module.model.weight".strip("module.") == "weight"
    base = BaseShapes({"module.model.weight": BaseTensor((4,), (True,))})
    assert base.match({"model.weight": (8,)})["model.weight"].ratio(0) == 2.0


def test_misfits_are_collected() -> None:
    base = make_base_shapes(gcn(16, 3), gcn(24, 3))
    target = shapes_of(pyg.GCN(DATA + 1, 64, 5, OUT + 2, norm="batch_norm"))
    with pytest.raises(BaseShapeError) as caught:
        base.match({**target, "head.weight": (3, 3)})
    text = str(caught.value)
    assert "convs.0.lin.weight [64, 12]: its base is convs.0.lin.weight [16*, 11]" in text
    assert "convs.4.lin.weight [9, 64]: its base is convs.2.lin.weight [7, 16*]" in text
    assert "head.weight [3, 3]: the base has nothing at this place" in text
    assert "make_base_shapes(base, delta, savefile)" in text
    assert "convs.1" not in text


@pytest.mark.parametrize("shape", [(64,), (64, 11, 1), (64, 0), (0, 11), ()])
def test_a_tensor_of_another_kind_is_refused(shape: tuple[int, ...]) -> None:
    base = BaseShapes({"w": BaseTensor((16, 11), (True, False))})
    with pytest.raises(BaseShapeError, match=r"w .*\[16\*, 11\]"):
        base.match({"w": shape})


def test_long_lists_of_problems_are_cut() -> None:
    base = BaseShapes({"w": BaseTensor((16,), (True,))})
    with pytest.raises(BaseShapeError, match=r"and 80 more"):
        base.match({f"p{'x' * i}": (3,) for i in range(100)})


def test_a_thousand_layers_are_quick() -> None:
    base = make_base_shapes(gcn(16, 3), gcn(24, 3))
    target = {f"convs.{i}.lin.weight": (64, 64) for i in range(1, 1999)}
    started = time.process_time()
    base.match({"convs.0.lin.weight": (64, DATA), **target, "convs.1999.lin.weight": (OUT, 64)})
    assert time.process_time() - started < 5.0


# ---- files --------------------------------------------------------------------------------

GOOD = """\
format: gnn_mup/1
depth: 8
width: 64
gamma: 2.3
inserted: false
adds_per_block: 1.0
branches: {edge.weight: 8}
tuned: {lr: 0.01}
tensors:
  lin.weight: {base: [64, 11], grows: [true, false], rms: 0.0913}
  lin.bias: {base: [64], grows: [true], rms: null}
  eps: {base: [], grows: [], rms: 0.0}
"""


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "base.bsh"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_good_file(tmp_path: Path) -> None:
    assert load_base_shapes(written(tmp_path, GOOD)) == BaseShapes(
        {
            "lin.weight": BaseTensor((64, 11), (True, False), 0.0913),
            "lin.bias": BaseTensor((64,), (True,), None),
            "eps": BaseTensor((), (), 0.0),
        },
        depth=8,
        width=64,
        gamma=2.3,
        adds_per_block=1.0,
        branches={"edge.weight": 8},
        tuned={"lr": 0.01},
    )


def test_what_the_file_looks_like(tmp_path: Path) -> None:
    tensors = {
        "convs.0.lin.weight": BaseTensor((64, 11), (True, False), 1e-05),
        "0": BaseTensor((0, 64), (False, True), None),
    }
    save_base_shapes(BaseShapes(tensors, depth=2, gamma={"convs.0": 2.0}), tmp_path / "b.bsh")
    lines = (tmp_path / "b.bsh").read_text().splitlines()
    assert lines[0].startswith("# Base shapes of gnn_mup.")
    assert lines[3:] == [
        "format: gnn_mup/1",
        "depth: 2",
        "width: null",
        "gamma: {convs.0: 2.0}",
        "inserted: false",
        "adds_per_block: null",
        "branches: {}",
        "tuned: {}",
        "head_dims: {}",
        "tensors:",
        "  convs.0.lin.weight: {base: [64, 11], grows: [true, false], rms: 1.0e-05}",
        '  "0": {base: [null, 64], grows: [false, true], rms: null}',
    ]
    # Other YAML readers understand it too.
    plain = yaml.safe_load((tmp_path / "b.bsh").read_text())
    assert plain["tensors"]["convs.0.lin.weight"]["rms"] == 1e-05


NAMES = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20
).filter(str.isprintable)
FLOATS = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
SIZES = st.integers(1, 10**9)


@st.composite
def base_tensors(draw: st.DrawFn) -> BaseTensor:
    dims = draw(st.lists(st.tuples(SIZES, st.booleans()), max_size=4))
    shape, grows = tuple(s for s, _ in dims), tuple(g for _, g in dims)
    return BaseTensor(shape, grows, draw(st.none() | FLOATS | st.just(0.0)))


@settings(max_examples=100, deadline=None)
@given(
    tensors=st.dictionaries(NAMES, base_tensors(), max_size=5),
    depth=st.none() | SIZES,
    gamma=st.none() | FLOATS | st.dictionaries(NAMES, FLOATS, max_size=3),
    inserted=st.booleans(),
    branches=st.dictionaries(NAMES, SIZES, max_size=3),
    tuned=st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
)
def test_round_trip_is_exact(tmp_path_factory, tensors, depth, gamma, inserted, branches, tuned):
    tensors = {**tensors, "w": BaseTensor((3,), (True,), 1 / 3)}
    shapes = BaseShapes(tensors, depth, depth, gamma, inserted, branches, None, tuned)
    path = tmp_path_factory.mktemp("trip") / "b.bsh"
    save_base_shapes(shapes, path)
    assert load_base_shapes(path) == shapes
    assert yaml.safe_load(path.read_text("utf-8"))["tensors"].keys() == tensors.keys()


def test_torch_and_numpy_numbers_are_saved_as_numbers(tmp_path: Path) -> None:
    import numpy as np

    tensor = BaseTensor(tuple(torch.Size([4])), (True,), np.float64(0.1))
    shapes = BaseShapes({"w": tensor}, np.int64(3), 4, torch.tensor(2.5).double())
    save_base_shapes(shapes, tmp_path / "b.bsh")
    loaded = load_base_shapes(tmp_path / "b.bsh")
    assert (loaded.depth, loaded.gamma, loaded.tensors["w"].rms) == (3, 2.5, 0.1)


# what is wrong: (what to replace in GOOD, by what, what the message says)
BAD = {
    "zero size": ("[64, 11]", "[0, 11]", r"line 10: base of lin\.weight must be a whole number"),
    "negative size": ("[64, 11]", "[-64, 11]", r"line 10: base of lin\.weight .*'-64'"),
    "bool size": ("[64, 11]", "[true, 11]", r"line 10: base of lin\.weight .*'true'"),
    "float size": ("[64, 11]", "[64.0, 11]", r"line 10.*'64\.0'"),
    "huge size": ("[64, 11]", f"[{'9' * 5000}, 11]", r"line 10"),
    "text size": ("[64, 11]", "[wide, 11]", r"line 10.*'wide'"),
    "null where it grows": ("[64, 11]", "[null, 11]", r"line 10.*'null'"),
    "nested size": ("[64, 11]", "[[64], 11]", r"line 10.*not a list"),
    "no list": ("[64, 11]", "64", r"line 10: base of lin\.weight must be a list"),
    "lengths": ("[true, false]", "[true]", r"line 10: lin\.weight: base has 2 entries and grows 1"),
    "grows not bool": ("[true, false]", "[1, 0]", r"grows of lin\.weight must be true or false"),
    "nan rms": ("0.0913", ".nan", r"line 10: rms of lin\.weight must be a finite number"),
    "nan rms, bare": ("0.0913", "nan", r"rms of lin\.weight must be a finite number"),
    "inf rms": ("0.0913", "1.0e999", r"rms of lin\.weight must be a finite number"),
    "negative rms": ("0.0913", "-0.1", r"rms of lin\.weight must be at least 0"),
    "text rms": ("0.0913", "small", r"rms of lin\.weight .*'small'"),
    "zero depth": ("depth: 8", "depth: 0", r"line 2: depth must be a whole number of at least 1"),
    "list width": ("width: 64", "width: [64]", r"line 3: width .*not a list"),
    "zero gamma": ("gamma: 2.3", "gamma: 0", r"line 4: gamma must be above 0"),
    "gamma table": ("gamma: 2.3", "gamma: {c: x}", r"line 4: gamma of c must be a finite number"),
    "inserted": ("inserted: false", "inserted: maybe", r"line 5: inserted must be true or false"),
    "branches": ("{edge.weight: 8}", "{edge.weight: 0}", r"line 7: branches of edge\.weight"),
    "branches list": ("{edge.weight: 8}", "[8]", r"line 7: branches must be a table"),
    "tuned": ("{lr: 0.01}", "{lr: fast}", r"line 8: tuned lr must be a finite number"),
    "tensors list": ("tensors:\n", "tensors: []\nmore:\n", r"unknown more"),
    "missing key": ("depth: 8\n", "", r"the file: missing depth"),
    "unknown key": ("depth: 8", "depth: 8\ndeep: 3", r"the file: unknown deep"),
    "missing in tensor": (", rms: 0.0913", "", r"line 10: lin\.weight: missing rms"),
    "unknown in tensor": ("rms: 0.0913", "rms: 0.1, std: 1", r"lin\.weight: unknown std"),
    "duplicate tensor": (
        "lin.bias:",
        "lin.weight:",
        r"line 11: 'lin\.weight' stands here a second",
    ),
    "duplicate key": ("depth: 8", "depth: 8\ndepth: 8", r"line 3: 'depth' stands here a second"),
    "no format": ("format: gnn_mup/1\n", "", r"the key format is missing"),
    "later format": ("gnn_mup/1", "gnn_mup/2", r"line 1: format must be gnn_mup/1"),
    "nothing grows": ("true", "false", r"no dimension of any tensor grows"),
    "python tag": ("0.0913", "!!python/object/apply:os.system [exit 1]", r"line 10: tags such as"),
    "python name": ("lin.bias", "!!python/name:os.system x", r"line 11: tags such as"),
    "harmless tag": ("0.0913", "!!float 0.1", r"line 10: tags such as"),
    "anchor": ("[64, 11]", "&a [64, 11]", r"line 10: anchors and aliases"),
    "alias": ("[64, 11]", "*a", r"line 10: anchors and aliases"),
    "merge": ("depth: 8", "<<: {depth: 8}", r"unknown <<"),
    "list as key": ("lin.bias:", "[1, 2]:", r"line 11: a key must be a name"),
    "two documents": ("tensors:", "---\ntensors:", r"2 documents instead of one"),
    "tab": ("  lin.bias", "\tlin.bias", r"line 11: not YAML"),
    "open bracket": ("[64, 11]", "[64, 11", r"line 10"),
    "empty name": ("lin.bias", '""', r"line 11: '' is no name of a parameter"),
    "control character": ("lin.bias", '"lin\\x07bias"', r"line 11: .* is no name"),
    "many dots": ("lin.bias", "a" + ".a" * 300, r"line 11: .* is no name"),
}


@pytest.mark.parametrize(("old", "new", "message"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
def test_bad_files(tmp_path, monkeypatch, loader, old, new, message) -> None:
    if not hasattr(yaml, loader):
        pytest.skip("this PyYAML was built without libyaml")
    monkeypatch.setattr(safe_yaml, "_LOADER", getattr(yaml, loader))
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(BaseShapeError, match=message) as caught:
        load_base_shapes(path)
    assert str(path) in str(caught.value)
    assert "make_base_shapes(" in str(caught.value)


NOT_OURS = {
    "empty": (b"", "0 documents"),
    "comments only": (b"# nothing\n", "0 documents"),
    "text": (b"hello", "the file must be a table"),
    "list": (b"- 1\n- 2\n", "the file must be a table"),
    "empty table": (b"{}", "no dimension of any tensor grows"),
    "binary": (b"\x80\x02}q\x00.", "not a text file"),
    "nul": (b"a: [1]\x00", "not YAML"),
    "utf-16": ("a: [1]".encode("utf-16"), "not a text file"),
    "checkpoint": (b"PK\x03\x04\x00\x00\x08", "not YAML"),
    "deep list": (b"[" * 100_000, "nested too deeply"),
    "deep table": (b"{a: " * 100_000, "nested too deeply"),
    "deep block": (b"\n".join(b" " * i + b"a:" for i in range(500)), "nested too deeply"),
    "bomb": (
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(
            b"%c: &%c [%b]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in b"bcdefghi"
        ),
        "line 1: anchors",
    ),
    "mup, all finite": (b"w: [null, null]\nb: [null]\n", "no dimension of any tensor grows"),
    "mup, bool": (b"w: [true, null]", "w must be a whole number of at least 1, not 'true'"),
    "mup, zero": (b"w: [0]", "w must be a whole number"),
    "mup, scalar": (b"w: 64", "w must be a list, not '64'"),
    "mup, nested": (b"w: [[64]]", "w must be a whole number of at least 1, not a list"),
    "mup, twice": (b"w: [64]\nw: [32]", "line 2: 'w' stands here a second time"),
}


@pytest.mark.parametrize(("raw", "message"), NOT_OURS.values(), ids=NOT_OURS.keys())
def test_files_that_are_something_else(tmp_path: Path, raw: bytes, message: str) -> None:
    started = time.process_time()
    with pytest.raises(BaseShapeError, match=message):
        load_base_shapes(written(tmp_path, raw))
    assert time.process_time() - started < 1.0


def test_nothing_is_executed(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    for tag in ("python/object/apply:os.system", "python/object/new:os.system"):
        with pytest.raises(BaseShapeError, match="tags such as"):
            load_base_shapes(written(tmp_path, f"w: !!{tag} ['touch {proof}']"))
    assert not proof.exists()


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(BaseShapeError, match=r"nowhere\.bsh: no such file.*make_base_shapes"):
        load_base_shapes(tmp_path / "nowhere.bsh")
    with pytest.raises(BaseShapeError, match="no such file"):
        load_base_shapes(tmp_path)
    with pytest.raises(BaseShapeError, match=r"b\.bsh"):
        load_base_shapes("\0b.bsh")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BaseShapeError, match="no such file"):
        load_base_shapes(tmp_path / "pipe")


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shapefile, "_LIMIT", 100)
    with pytest.raises(BaseShapeError, match="larger than"):
        load_base_shapes(written(tmp_path, GOOD))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (BaseShapes({"w": BaseTensor((4,), (True,), math.nan)}), "rms of w"),
        (BaseShapes({"w": BaseTensor((-4,), (True,))}), "base of w"),
        (BaseShapes({"w": BaseTensor((4,), (False,))}), "no dimension"),
        (BaseShapes({"w": BaseTensor((4,), (True,))}, depth=0), "depth"),
        (BaseShapes({"w": BaseTensor((4,), (True,))}, gamma=-1.0), "gamma"),
        (BaseShapes({"a\nb": BaseTensor((4,), (True,))}), "no name"),
        (BaseShapes({"\ud800": BaseTensor((4,), (True,))}), "YAML|name"),
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, shapes, message: str) -> None:
    path = tmp_path / "b.bsh"
    with pytest.raises(BaseShapeError, match=message):
        save_base_shapes(shapes, path)
    assert not path.exists()


def test_saving_to_nowhere_and_in_no_format(tmp_path: Path) -> None:
    shapes = BaseShapes({"w": BaseTensor((4,), (True,))})
    with pytest.raises(BaseShapeError, match="cannot be written"):
        save_base_shapes(shapes, tmp_path / "none" / "b.bsh")
    with pytest.raises(BaseShapeError, match='format="mup"'):
        save_base_shapes(shapes, tmp_path / "b.bsh", format="json")  # type: ignore[arg-type]


# Pieces that YAML gives a meaning to, beside plain noise.
MEANINGFUL = [
    *(b"&a ", b"*a", b"!!python/object:os.system ", b"!", b"<<: ", b"? ", b": ", b"- ", b"[", b"]"),
    *(b"{", b"}", b"'", b'"', b"|\n", b">\n", b"%", b"---\n", b"...\n", b"\t", b"\x00", b"\xff"),
    *(b"null", b"true", b"~", b"-1", b"0", b"1e999", b".nan", b"2001-99-99", b"1:30", b"0x10"),
    *(b"\n", b"\r", b"\xc2\x85", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"#", b"9" * 400, b"[" * 400),
]
PIECES = st.sampled_from(MEANINGFUL) | st.binary(max_size=6)
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 12), PIECES, st.booleans()), min_size=1, max_size=6
)


@settings(max_examples=400, deadline=None)
@given(edits=EDITS, plain=st.booleans())
def test_mutated_files_are_read_or_refused(tmp_path_factory, edits, plain: bool) -> None:
    raw = b"w: [64, null]\nb:\n- 64\ne: []\n" if plain else GOOD.encode()
    for place, cut, piece, doubled in edits:
        at = int(place * len(raw))
        raw = raw[:at] + piece + raw[at if doubled else at + cut :]
    path = tmp_path_factory.mktemp("mutated") / "b.bsh"
    path.write_bytes(raw)
    started = time.process_time()
    shapes = None
    with contextlib.suppress(BaseShapeError):
        shapes = load_base_shapes(path)
    if shapes is not None:
        known = {n: t.shape for n, t in shapes.tensors.items() if 0 not in t.shape}
        assert all(matched.unchanged for matched in shapes.match(known).values())
        save_base_shapes(shapes, path)
        assert load_base_shapes(path) == shapes
    assert time.process_time() - started < 1.0


# ---- mup's own files ----------------------------------------------------------------------


class Readout(nn.Module):
    """An MLP that mup accepts; a name that only quotes keep from being a number."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(DATA, width), nn.Linear(width, width)])
        self.out = mup.MuReadout(width, OUT)
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.register_parameter("0", nn.Parameter(torch.ones(width)))


def test_mup_reads_what_we_write(tmp_path: Path) -> None:
    ours = make_base_shapes(Readout(16), Readout(24))
    save_base_shapes(ours, tmp_path / "ours.bsh", format="mup")
    mup.make_base_shapes(Readout(16), Readout(24), str(tmp_path / "mups.bsh"))
    assert mup.load_base_shapes(str(tmp_path / "ours.bsh")) == mup.load_base_shapes(
        str(tmp_path / "mups.bsh")
    )
    model = mup.set_base_shapes(Readout(64), str(tmp_path / "ours.bsh"))
    matched = ours.match(shapes_of(model))
    for name, parameter in model.named_parameters():
        assert parameter.infshape == matched[name].infshape


def test_we_read_what_mup_writes(tmp_path: Path) -> None:
    mup.make_base_shapes(Readout(16), Readout(24), str(tmp_path / "mups.bsh"))
    theirs = load_base_shapes(tmp_path / "mups.bsh")
    ours = make_base_shapes(Readout(16), Readout(24))
    assert {n: t.grows for n, t in theirs.tensors.items()} == {
        n: t.grows for n, t in ours.tensors.items()
    }
    assert all(t.rms is None for t in theirs.tensors.values())
    assert (theirs.depth, theirs.width, theirs.gamma) == (None, None, None)
    target = shapes_of(Readout(64))
    by_them, by_us = theirs.match(target), ours.match(target)
    assert all(by_them[n].infshape == by_us[n].infshape for n in target)


def test_what_a_mup_file_does_not_tell_stays_unknown(tmp_path: Path) -> None:
    theirs = load_base_shapes(written(tmp_path, "w: [64, null]\n"))
    assert theirs.tensors["w"] == BaseTensor((64, 0), (True, False), None)
    assert str(theirs.tensors["w"]) == "[64*, ?]"
    assert theirs.match({"w": (64, 999)})["w"].unchanged
    save_base_shapes(theirs, tmp_path / "again.bsh")
    assert load_base_shapes(tmp_path / "again.bsh") == theirs


def test_a_mup_file_serves_another_depth_too(tmp_path: Path) -> None:
    """mup itself refuses (its issue 54)."""
    mup.make_base_shapes(gcn(16, 2), gcn(24, 2), str(tmp_path / "mups.bsh"))
    with pytest.raises(AssertionError, match="extra names"):
        mup.set_base_shapes(gcn(64, 5), str(tmp_path / "mups.bsh"))
    found = load_base_shapes(tmp_path / "mups.bsh").match(shapes_of(gcn(64, 5)))
    assert found["convs.2.lin.weight"].grows == (True, True)
    assert found["convs.2.lin.weight"].ratio(1) == 4.0
    assert found["convs.4.lin.weight"].grows == (False, True)


def test_what_mup_cannot_represent(tmp_path: Path) -> None:
    wide = BaseShapes({"w": BaseTensor((4, 8, 8), (True, True, True))})
    with pytest.raises(BaseShapeError, match=r'(?s)format="gnn_mup".*w \[4\*, 8\*, 8\*\]'):
        save_base_shapes(wide, tmp_path / "b.bsh", format="mup")
    inserted = BaseShapes({"w": BaseTensor((4,), (True,))}, inserted=True)
    with pytest.raises(BaseShapeError, match="inserted"):
        save_base_shapes(inserted, tmp_path / "b.bsh", format="mup")

"""A layer the trace cannot look into, explained with one decorator.

python examples/extension.py
"""

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gnn_mup import Weight, describes, plan_transfer


@torch.library.custom_op("gnn_mup_example::fused_linear", mutates_args=())
def fused_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Stands for a kernel in C++ or Triton: from outside, tensors go in and one comes out."""
    return x @ weight + bias


class FusedLinear(nn.Module):
    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_in, fan_out) / fan_in**0.5)
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        return fused_linear(x, self.weight, self.bias)


@describes(FusedLinear)
def describe_fused_linear(layer: FusedLinear) -> dict[str, Weight]:
    """The weight lies as (in, out): axis 0 is summed over, axis 1 becomes features."""
    return {"weight": Weight(fan_in=(0,), fan_out=(1,)), "bias": Weight(fan_out=(0,))}


class Net(nn.Module):
    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.encoder = FusedLinear(8, width)
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        self.mixers = nn.ModuleList(FusedLinear(width, width) for _ in range(depth))
        self.decoder = FusedLinear(width, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, mixer in zip(self.convs, self.mixers, strict=True):
            x = x + mixer(conv(x, edge_index).relu())
        return self.decoder(x)


if __name__ == "__main__":
    example = torch.randn(20, 8), torch.randint(0, 20, (2, 60))
    print(plan_transfer(Net(), example))

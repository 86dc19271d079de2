"""Forward passes without dropout: masks of different widths are different draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...ir.functions import ATTENTION, DROPOUT, WHOLE_ATTENTION
from ..tensors import transparent


class Quiet(TorchFunctionMode):
    """A function mode under which dropout does nothing, in whatever form it is written."""

    def __init__(self, dropout: bool = False) -> None:
        super().__init__()
        self.dropout = dropout

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self.dropout:
            if name in DROPOUT:
                x: Tensor = args[0] if args else kwargs["input"]
                return x.clone()  # what follows may write into it
            if name in ATTENTION and len(args) < 5:
                kwargs["dropout_p"] = 0.0
        return self.watched(name, func, args, kwargs)

    def watched(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if name in WHOLE_ATTENTION:
            with self:
                return transparent(func)(*args, **kwargs)
        return func(*args, **kwargs)

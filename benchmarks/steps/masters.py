"""fp32 copies of a model in half precision, which the optimizer updates (apex O2)."""

from __future__ import annotations

from torch import nn


class Masters(nn.Module):
    """fp32 copies of a model's parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.copies = nn.ParameterList([nn.Parameter(p.detach().float()) for p in model.parameters()])

"""fp32 master weights of a model in half precision; the optimizer updates them (apex O2)."""

from __future__ import annotations

from torch import nn


class MasterWeights(nn.Module):
    """fp32 copies of a model's parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.copies = nn.ParameterList([nn.Parameter(p.detach().float()) for p in model.parameters()])

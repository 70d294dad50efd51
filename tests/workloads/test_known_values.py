"""Values that a step reads or selects by, where they follow from those of its batch; and what a capture gives back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from pipeline.errors import InputError
from steptime import predict

IDS = torch.arange(16 * 40).view(16, 40) % 100


class Reading(nn.Module):
    """A step that decides by the values of its batch, and writes into its settings."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.seen = nn.Embedding(100, 32), list[Any]()
        self.register_buffer("sizes", torch.tensor([3, 5]))
        self.config = SimpleNamespace(kind=None, text=SimpleNamespace(parts=[1]))

    def forward(self, ids: Tensor, share: Tensor) -> Tensor:
        self.config.kind = "set"
        self.config.text.parts.append(2)
        lengths = (ids != 0).sum(1)
        counted = torch.tensor([2, 4], device=ids.device)
        x = self.table(ids)
        picked = x[ids > 50]
        x[:, share > 0.5] = 0.0
        rows = torch.repeat_interleave(picked[:2], counted, dim=0)
        chosen = x.masked_select((ids > 50)[..., None])
        SEEN[:] = [int(lengths.max()), len(picked), rows.shape[0], self.sizes.tolist()]
        return (x.sum() + picked.sum() + rows.sum() + chosen.sum()) / float(share.sum())


SEEN: list[Any] = []


def test_values_that_follow_from_those_of_the_batch_are_known() -> None:
    model, share = Reading(), torch.linspace(0, 1, 40)
    answer = predict("A100", model=model, batch={"ids": IDS, "share": share})
    assert [int((IDS != 0).sum(1).max()), int((IDS > 50).sum()), 6, [3, 5]] == SEEN
    assert answer.calls is not None
    assert (answer.calls["family"] == "memcpy_d2h").sum() >= 4, "the host waits"
    assert vars(model.config)["kind"] is None and model.config.text.parts == [1]


def test_what_is_written_to_is_not_known_any_more() -> None:
    class Written(nn.Linear):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            lengths = lengths.clone()
            lengths.add_(1)
            return super().forward(x).sum() * int(lengths.sum())

    batch = torch.rand(4, 8), torch.ones(4, dtype=torch.long)
    try:
        predict("A100", model=Written(8, 8), batch=batch)
    except InputError as error:
        assert "reads values" in str(error)
    else:
        raise AssertionError("an old value was taken")


def test_numbers_for_numpy_are_ones_with_a_warning() -> None:
    class Matching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            _, columns = linear_sum_assignment(torch.cdist(y, y)[0].detach().cpu())
            return y[:, torch.as_tensor(columns)].sum()

    answer = predict("A100", model=Matching(8, 8), batch=(torch.rand(4, 8, 8),))
    assert any("NumPy" in warning for warning in answer.warnings)


def test_a_module_of_torchscript_gets_its_tensors_back() -> None:
    net = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    before = [tensor.clone() for tensor in net.state_dict().values()]
    predict("A100", model=net, batch=(torch.rand(4, 8), torch.rand(4, 8)), loss=F.mse_loss)
    assert all(map(torch.equal, before, net.state_dict().values()))

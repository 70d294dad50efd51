"""Lines that scripts have as they are written: flags in batches, known lengths, counts of indices, procedures, small operators."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pipeline.errors import InputError, SteptimeWarning
from steptime import Step, compare, predict

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.errors.SteptimeWarning")


def step_of(forward: Any, *more: Tensor, width: int = 64, **changed: Any) -> Any:
    """A step whose model is a linear layer; `forward` gets the model, the batch, and the further inputs."""

    def make_step(config: Any, batch_size: int, device: str) -> Step:
        with torch.device(device):
            model = nn.Linear(width, width)
        batch, given = (torch.rand(batch_size, width), *more), {**config, **changed}
        return Step([model], [batch], lambda *x: forward(model, *x).sum(), None, device, given)

    return make_step


def calls_of(forward: Any, *more: Tensor) -> pd.DataFrame:
    """Device calls of such a step on a V100; `forward` gets the output of its model, and the further inputs."""
    step = step_of(lambda model, x, *y: forward(model(x), *y), *more)
    p = predict("V100", step=step, batch_size=32)
    assert p.calls is not None and p.lower_bound == ()
    return p.calls


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 32)

    def forward(self, x: Tensor, y: Any, return_loss: bool, said: str, mask: None) -> Any:
        assert return_loss is True and said == "a text" and mask is None and y["few"] == 3
        return {"loss": self.layer(x).sum() + y["part"].sum()}


def test_flags_and_texts_of_a_batch_are_passed_on_unchanged() -> None:
    def batch(size: int) -> dict[str, Any]:
        parts = {"part": torch.rand(size), "few": 3}
        flags = {"return_loss": True, "said": "a text", "mask": None}
        return {"x": torch.rand(size, 64), "y": parts, **flags}

    p = predict("V100", model=Pairs, batch=batch, batch_size=32)
    assert p.calls is not None and (p.calls["family"] == "memcpy_h2d").sum() == 2
    assert predict("V100", model=Pairs, batch=batch(8), batch_size=16).batch_size == 16


def test_lengths_that_the_host_made_are_known_to_it_and_to_packed_sequences() -> None:
    with torch.device("meta"):
        cells = nn.GRU(64, 8, batch_first=True)

    def forward(x: Tensor, lengths: Tensor) -> Any:
        assert lengths.tolist() == [3, 1, 2] and int(lengths.max()) == 3
        assert lengths.to(torch.int32).sum().item() == 6 and (lengths > 2).cpu().tolist()[0]
        rows = x[:3].repeat_interleave(lengths, 0)
        assert len(rows) == 6
        sequences = x[:9].view(3, 3, 64)
        packed = pack_padded_sequence(sequences, lengths.cpu(), True, enforce_sorted=False)
        assert packed.batch_sizes.tolist() == [3, 2, 1]
        return rows.sum() + pad_packed_sequence(cells(packed)[0], batch_first=True)[0].sum()

    calls = calls_of(forward, torch.tensor([3, 1, 2]))
    assert (calls["family"] == "memcpy_d2h").sum() >= 5, "the host waits for each value"


def test_a_step_whose_way_depends_on_a_number_that_it_reads_is_warned_of() -> None:
    with pytest.warns(SteptimeWarning, match=r"taken as 1\.0, with 0\.5; a run may go another way"):
        calls_of(lambda x: x * 2 if x.mean().item() > 0.5 else x)


def test_indices_are_counted_by_a_number_of_entries_and_groups_are_equal() -> None:
    def forward(x: Tensor) -> Tensor:
        expert = x.argmax(1)
        sizes = torch.bincount(expert, minlength=8)
        assert sizes.shape == (8,) and sizes.tolist() == [4] * 8
        weights = torch.bincount(expert, weights=x[:, 0].detach(), minlength=8)
        assert weights.is_floating_point() and len(torch.repeat_interleave(sizes)) == 32
        return x * weights[expert][:, None]

    calls = calls_of(forward)
    counted = calls[calls["name"] == "aten::bincount"]
    assert counted["op"].iloc[-1] == "histogram" and (counted["family"] == "memcpy_d2h").sum() == 4
    with pytest.raises(InputError, match=r"give minlength=.*line \d+"):
        calls_of(lambda x: torch.bincount(x.argmax(1)))
    with pytest.raises(InputError, match=r"give output_size=.*line \d+"):
        calls_of(lambda x: x.repeat_interleave(x.argmax(1), 0))


def test_a_procedure_with_sparse_gradients_is_the_step_that_it_writes_out() -> None:
    def predicted(procedure: bool) -> Any:
        def make_step(config: Any, batch_size: int, device: str) -> Step:
            with torch.device(device):
                table, top = nn.Embedding(1000, 16, sparse=True), nn.Linear(16, 1, bias=False)

            def forward(x: Tensor, y: Tensor) -> Tensor:
                rows = F.embedding(x, table.weight, sparse=True)
                return F.mse_loss(top(rows).squeeze(-1), y)

            def run(batch: Any, optimizers: Any) -> None:
                forward(*batch).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()

            batch = torch.randint(1000, (batch_size,)), torch.rand(batch_size)
            written = run if procedure else None
            return Step([table, top], [batch], forward, None, device, config, procedure=written)

        return predict("V100", step=make_step, batch_size=512)

    plain, own = predicted(False), predicted(True)
    columns = ["family", "op", "kernel_us"]
    assert own.calls[columns].equals(plain.calls[columns])
    assert set(own.calls["phase"]) == {"data", "forward", "backward", "optimizer"}
    assert own.predicted_us == pytest.approx(plain.predicted_us, rel=1e-3)


def test_a_small_operator_without_a_model_is_no_lower_bound_and_is_said() -> None:
    def forward(model: nn.Module, x: Tensor) -> Tensor:
        few = torch.special.bessel_j0(x[0, :8])
        return (model(x)[:, 1] * model(x)[:, 2]).sum() + few.sum()

    p = predict("V100", step=step_of(forward, width=1024, mode="inference"), batch_size=4096)
    assert set(p.unmodelled_us) == {"aten::special_bessel_j0"} and 0 < p.unmodelled_share < 0.01
    assert p.lower_bound == () and "at least" not in str(p)
    said = f"{p.unmodelled_share:.1%} of device time (aten::special_bessel_j0)"
    assert ("not modelled", said) in p.rows()


def test_a_step_that_reads_the_gpu_is_captured_for_each() -> None:
    def forward(model: nn.Module, x: Tensor) -> Tensor:
        new = torch.cuda.get_device_capability()[0] >= 8
        return model(x) if new else x + x

    step = step_of(forward, mode="inference")
    found = compare("V100,A100,T4", step=step, batch_size=32).predictions
    assert ["gemm" in p.families_us for p in found] == [p.gpu.startswith("A100") for p in found]

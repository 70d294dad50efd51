"""Steps given as Python objects: `predict(step=function)`, `predict(model=module, batch=..., loss=...)`."""

from __future__ import annotations

import warnings
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipeline.errors import ConfigError, InputError, SteptimeError
from pipeline.workloads import user_steps
from steptime import Step, advise, compare, plan, predict, predict_grid


class Net(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.last = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(size, 64), torch.randint(10, (size,))


def make_step(config: Any, batch_size: int, device: str) -> Step:
    with torch.device(device):
        model = Net()
    return Step(
        [model],
        [batch(batch_size)],
        lambda x, y: model(x),
        lambda out, x, y: F.cross_entropy(out, y),
        device,
        config,
    )


def on_meta() -> Net:
    with torch.device("meta"):
        return Net()


def calls_of(**given: Any) -> pd.DataFrame:
    calls = predict("V100", **{"batch_size": 128, **given}).calls
    assert calls is not None
    return calls[["name", "family", "op", "phase", "kernel_us"]]


GIVEN: dict[str, Any] = {"model": Net, "batch": batch, "loss": F.cross_entropy}

WAYS: dict[str, dict[str, Any]] = {
    "class": GIVEN,
    "function that makes it": {**GIVEN, "model": lambda: Net(), "loss": nn.CrossEntropyLoss()},
    "on the meta device": {**GIVEN, "model": on_meta()},
    "with its weights": {**GIVEN, "model": Net(), "batch": batch(8)},
    "step is a module": {"step": Net, "batch": batch, "loss": F.cross_entropy},
    "moved to the GPU": {**GIVEN, "model": lambda: Net().to("cuda")},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_give_a_step_is_the_same_step(way: str) -> None:
    calls = calls_of(**WAYS[way])
    assert (calls["family"] == "gemm").sum() == 5, "two products forward, three backward"
    pd.testing.assert_frame_equal(calls, calls_of(step=make_step))


def test_a_given_step_has_the_name_of_its_object_and_the_options_that_were_asked() -> None:
    p = predict("V100", **{**GIVEN, "batch": batch(48)}, optimizer="adam")
    assert (p.title, p.overrides) == ("Net on V100, batch 48", ("model.optimizer=adam",))
    assert (p.batch_size, p.asked["optimizer"]) == (48, "adam")
    q = predict("V100", **{**GIVEN, "model": Net()}, optimizer=lambda w: torch.optim.AdamW(w))
    assert q.asked == {"dtype": "default", "optimizer": "AdamW"}


@pytest.mark.parametrize("kind, name", [(torch.optim.Adam, "adam"), (torch.optim.SGD, "sgd")])
def test_an_optimizer_of_ones_own_is_the_one_of_its_name(kind: Any, name: str) -> None:
    named, own = (predict("V100", **GIVEN, optimizer=optimizer) for optimizer in (name, kind))
    assert own.memory_bytes == named.memory_bytes and own.predicted_us == named.predicted_us
    assert own.calls is not None and own.calls["phase"].eq("optimizer").any()


def test_the_users_objects_are_as_before() -> None:
    class Settings(dict[str, int]):
        """As diffusers keeps the configuration of a model."""

        def update(self, *_: Any, **__: Any) -> None:
            raise AssertionError("settings cannot be changed")

    model, (x, y) = Net(), batch(8)
    model.settings = Settings(width=8)  # type: ignore[assignment]
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = list(model.parameters())
    gradient = model.first.weight.grad

    def procedure(batch: Any, optimizers: Any) -> None:
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    predict("V100", model=model, batch=(x, y), optimizer=optimizer, procedure=procedure)
    predict("V100", model=model, batch=(x, y), loss=F.cross_entropy, model__mode="inference")
    with pytest.raises(SteptimeError):
        predict("V100", model=model, batch=batch, loss=lambda *_: 1 / 0)
    (group,) = optimizer.param_groups
    for held in (list(model.parameters()), list(optimizer.state), group["params"]):
        assert all(one is other for one, other in zip(parameters, held, strict=True))
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert model.first.weight.grad is gradient and model.training and scheduler.last_epoch == 0
    assert optimizer.state[parameters[0]]["exp_avg"].device.type == "cpu" and group["lr"] == 1e-3
    assert not user_steps._MAKERS, "no given step is left behind"


def test_a_loss_may_have_tensors_of_its_own() -> None:
    loss = nn.CrossEntropyLoss(weight=nn.Parameter(torch.ones(10)))
    model = Net()
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], foreach=False)
    calls = calls_of(model=model, batch=batch(8), loss=loss, optimizer=optimizer)
    assert (calls["phase"] == "optimizer").sum() == 4
    assert all(tensor.device.type == "cpu" for tensor in [*loss.parameters(), *loss.buffers()])


def test_a_changed_object_is_captured_again() -> None:
    """A graph that was kept by the object's name would answer for the step before the change."""
    width = [32]
    given: Any = {**GIVEN, "model": lambda: Net(width[0])}
    first = predict("V100", **given)
    width[0] = 4096
    second = predict("V100", **given)
    assert second.memory_bytes - first.memory_bytes > 64 * 4000 * 4


def test_a_training_loop_as_a_procedure() -> None:
    """Accumulation over four parts, recomputation, a gradient scaler, clipping and a scheduler: the lines of docs/workloads.md."""
    model = on_meta()

    def make_loop(config: Any, batch_size: int, device: str) -> Step:
        scaler = torch.amp.GradScaler("cuda")
        optimizer = torch.optim.SGD(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)

        def procedure(batch: Any, optimizers: Any) -> None:
            for x, y in zip(*(tensor.chunk(4) for tensor in batch), strict=True):
                with torch.autocast("cuda", torch.float16):
                    loss = F.cross_entropy(checkpoint(model, x, use_reentrant=False), y) / 4
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer), scaler.update(), scheduler.step(), optimizer.zero_grad()

        return Step([model], [batch(batch_size)], None, None, device, config, procedure=procedure)

    p = predict("V100", step=make_loop, batch_size=128)
    assert p.warnings == () and p.calls is not None
    # forward, again up to what the backward pass needs, and gradients; a norm; the scaler's check
    found = p.calls["family"].value_counts()
    assert (found["gemm"], found["memcpy_d2h"]) == (4 * (2 + 1 + 3), 1)
    assert (p.calls["op"] == "foreach_norm").sum() == 1


def test_a_batch_may_be_a_dict_of_keywords_whose_model_returns_its_loss() -> None:
    class Labelled(Net):
        def forward(self, x: Any, labels: Any = None) -> Any:  # type: ignore[override]
            return {"loss": F.cross_entropy(super().forward(x), labels)}

    def named(size: int) -> dict[str, torch.Tensor]:
        return dict(zip(("x", "labels"), batch(size), strict=True))

    p = predict("V100", model=Labelled(), batch=named(16))
    assert p.batch_size == 16 and p.calls is not None and (p.calls["family"] == "loss").sum() == 2
    assert predict("V100", model=lambda: Labelled(), batch=named).batch_size == 32


def test_grids_plans_and_advice_take_steps_of_the_user() -> None:
    table = predict_grid("V100,T4", **GIVEN, batch_size="32,8192")
    assert list(table["model"]) == ["Net"] * 4 and table["unpredicted"].isna().all()
    one = compare("V100", step=make_step, batch_size="32,8192").table
    assert list(one["predicted_us"]) == list(table["predicted_us"][:2])
    best = plan("samples_per_s", "A100,T4", **GIVEN, batch_size="32,8192").best.question
    assert (best.gpu.name, best.batch_size) == ("A100-PCIE-40GB", 8192)
    advice = advise("V100", **GIVEN, batch_size=32)
    assert advice.before.model == advice.after.model == "Net"
    assert advice.lines[0].command.startswith("compare(model=Net, ..., gpu='V100', batch_size='32'")


@pytest.mark.parametrize(
    "given, says",
    [
        ({"model": Net}, "model=Net: give batch= too, such as (x, y)"),
        (
            {"model": Net(), "batch": batch},
            "(the model gets all parts of the batch: give loss=function(output, target)",
        ),
        (
            {"model": Net(), "batch": lambda n: (*batch(n), 1 + batch(n)[0]), "loss": F.mse_loss},
            "all parts of the batch but the last)",
        ),
        ({"model": Net(), "batch": batch, "procedure": 3}, "procedure=int: give a function"),
        (
            {**GIVEN, "model": Net(), "optimizer": torch.optim.SGD(Net().parameters())},
            "optimizer= updates no parameter of model=Net: make it from those, or give its class",
        ),
        (
            {**GIVEN, "optimizer": [torch.optim.SGD]},
            "optimizer=list: give one optimizer of the module",
        ),
        ({"model": Net(), "batch": batch, "los": F.cross_entropy}, "did you mean 'loss'?"),
        (
            {"model": 3, "batch": batch},
            "model=int: give a module, or a function or class that makes one",
        ),
        (
            {"model": "resnet50", "loss": F.cross_entropy},
            "loss=: model=resnet50 is a workload of Steptime",
        ),
        ({"model": "resnet50", "step": make_step}, "step= makes its own model: leave out model="),
        ({"step": make_step, "loss": F.cross_entropy}, "loss=: step= has its own: give a function"),
        ({"step": 3}, "step=int: give a function (config, batch_size, device) that returns a Step"),
        (
            {"step": lambda: None},
            "step=lambda: it is called as <lambda>(config, batch_size, device), and is defined as",
        ),
        ({"step": lambda *_: 3}, "step=lambda: returned int, not a steptime.Step"),
        (
            {"model": Net, "batch": batch, "procedure": lambda b, o: None},
            "procedure= uses the module that model= names",
        ),
        ({"model": Net(), "batch": (3, 4)}, "batch=: give tensors such as (x, y)"),
        (
            {**GIVEN, "model": Net(), "loss": lambda *_: 1 / 0},
            "model=Net: its code fails: ZeroDivisionError",
        ),
        ({"gpu": "local", "step": make_step}, "gpu=local measures a step that a file defines"),
    ],
)
def test_what_cannot_be_taken_says_what_to_give(given: Any, says: str) -> None:
    with pytest.raises((InputError, ConfigError)) as refused:
        predict(**given)
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is enabled where there is a GPU")
def test_a_scaler_that_pytorch_disabled_before_the_step_is_reported() -> None:
    with warnings.catch_warnings(action="ignore"):  # PyTorch's own
        scaler = torch.amp.GradScaler("cuda")
    model = Net()

    def procedure(batch: Any, optimizers: Any) -> None:
        scaler.scale(F.cross_entropy(model(batch[0]), batch[1])).backward()
        scaler.step(optimizers[0])

    with pytest.warns(UserWarning, match="GradScaler: it was made before the step"):
        predict("V100", model=model, batch=batch(8), procedure=procedure)


def test_tokens_of_ones_own_model_are_the_width_of_inputs_and_targets_in_whole_numbers() -> None:
    reader = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 100))
    ids = torch.randint(100, (4, 16))
    loss = lambda out, ids: F.cross_entropy(out.flatten(0, 1), ids.flatten())  # noqa: E731
    p = predict("V100", model=reader, batch=(ids, ids.clone()), loss=loss)
    assert p.tokens_per_s == pytest.approx(16 * p.samples_per_s)
    assert predict("V100", **GIVEN).tokens_per_s is None

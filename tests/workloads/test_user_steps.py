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


WAYS = {
    "function": {"step": make_step},
    "class": {"model": Net, "batch": batch, "loss": F.cross_entropy},
    "function that makes it": {
        "model": lambda: Net(),
        "batch": batch,
        "loss": nn.CrossEntropyLoss(),
    },
    "on the meta device": {"model": on_meta(), "batch": batch, "loss": F.cross_entropy},
    "with its weights": {"model": Net(), "batch": batch(8), "loss": F.cross_entropy},
    "step is a module": {"step": Net, "batch": batch, "loss": F.cross_entropy},
    "moved to the GPU": {
        "model": lambda: Net().to("cuda"),
        "batch": batch,
        "loss": F.cross_entropy,
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_give_a_step_is_the_same_step(way: str) -> None:
    calls = calls_of(**WAYS[way])
    assert (calls["family"] == "gemm").sum() == 5, "two products forward, three backward"
    pd.testing.assert_frame_equal(calls, calls_of(step=make_step))


def test_a_given_step_has_the_name_of_its_object_and_the_options_that_were_asked() -> None:
    given: dict[str, Any] = {"batch": batch(48), "loss": F.cross_entropy}
    p = predict("V100", model=Net, **given, optimizer="adam")
    assert (p.title, p.overrides) == ("Net on V100, batch 48", ("model.optimizer=adam",))
    assert p.asked["optimizer"] == "adam"
    q = predict("V100", model=Net(), **given, optimizer=lambda w: torch.optim.AdamW(w))
    assert (q.batch_size, q.label) == (48, "Net b48")
    assert q.asked == {"dtype": "default", "optimizer": "AdamW"}


def test_the_dtype_is_that_of_the_arithmetic_and_another_one_that_was_asked_for_is_named() -> None:
    half = {
        "model": nn.Linear(64, 64).half(),
        "batch": torch.rand(8, 64).half(),
        "loss": lambda out, _: out.sum(),
    }
    p = predict("A100", **half, model__dtype="tf32")
    assert p.asked["dtype"] == "fp16" and p.warnings == (
        "model.dtype=tf32: the step computes in fp16",
    )


@pytest.mark.parametrize(
    "kind, name",
    [(torch.optim.Adam, "adam"), (torch.optim.SGD, "sgd"), (torch.optim.Adagrad, "adagrad")],
)
def test_an_optimizer_of_ones_own_is_the_one_of_its_name(kind: Any, name: str) -> None:
    given = {
        "model": nn.Linear(1024, 1024),
        "batch": lambda size: (torch.rand(size, 1024),) * 2,
        "loss": F.mse_loss,
    }
    named, own = (predict("V100", **given, optimizer=optimizer) for optimizer in (name, kind))
    assert own.memory_bytes == named.memory_bytes and own.predicted_us == named.predicted_us
    assert own.calls is not None and own.calls["phase"].eq("optimizer").any()


def test_the_users_objects_are_as_before() -> None:
    model = Net()
    (x, y) = batch(8)
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
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert model.first.weight.grad is gradient and model.training and scheduler.last_epoch == 0
    assert (
        list(optimizer.state) == parameters
        and optimizer.state[parameters[0]]["exp_avg"].device.type == "cpu"
    )
    assert (
        optimizer.param_groups[0]["params"] == parameters
        and optimizer.param_groups[0]["lr"] == 1e-3
    )


def test_a_dict_that_nobody_may_change_is_as_before() -> None:
    """As diffusers keeps the configuration of a model."""

    class Settings(dict[str, int]):
        def update(self, *_: Any, **__: Any) -> None:
            raise AssertionError("settings cannot be changed")

    layer = nn.Linear(8, 4)
    layer.settings = Settings(width=8)  # type: ignore[assignment]
    given: dict[str, Any] = {"batch": (torch.rand(4, 8), torch.rand(4, 4)), "loss": F.mse_loss}
    plain = predict("A100", model=nn.Linear(8, 4), **given)
    asked = predict("A100", model=layer, **given)
    assert asked.predicted_us == pytest.approx(plain.predicted_us)
    assert layer.settings == {"width": 8}


def test_an_optimizer_may_update_a_part_of_the_module() -> None:
    """Its kernels are those of the parameters that it has: two layers' matrices, or one."""
    given: dict[str, Any] = {"batch": batch(8), "loss": F.cross_entropy, "model__foreach": False}
    kernels = []
    for part in (lambda net: net.parameters(), lambda net: net.last.parameters()):
        net = Net()
        calls = calls_of(
            model=net, optimizer=torch.optim.SGD(part(net), lr=0.1, foreach=False), **given
        )
        kernels.append((calls["phase"] == "optimizer").sum())
    assert kernels == [4, 2], "one kernel for each weight and bias"


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(10))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output * self.weight, target)


def with_buffer() -> nn.Module:
    loss = Weighted()
    del loss.weight
    loss.register_buffer("weight", torch.ones(10), persistent=False)
    return loss


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(weight=torch.ones(10)), nn.BCEWithLogitsLoss(), Weighted(), with_buffer()],
)
def test_a_loss_may_have_tensors_of_its_own(loss: nn.Module) -> None:
    x, y = batch(8)
    target = torch.rand(8, 10) if isinstance(loss, nn.BCEWithLogitsLoss) else y
    model = Net()
    updated = torch.optim.SGD([*model.parameters(), *loss.parameters()], foreach=False)
    calls = calls_of(model=model, batch=(x, target), loss=loss, optimizer=updated, batch_size=8)
    assert (calls["phase"] == "optimizer").sum() == 4 + len([*loss.parameters()])
    assert all(tensor.device.type == "cpu" for tensor in [*loss.parameters(), *loss.buffers()])


def test_a_changed_object_is_captured_again() -> None:
    """A graph that was kept by the object's name would answer for the step before the change."""
    width = [32]

    def make() -> Net:
        return Net(width[0])

    first = predict("V100", model=make, batch=batch, loss=F.cross_entropy)
    width[0] = 4096
    second = predict("V100", model=make, batch=batch, loss=F.cross_entropy)
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
    products = p.calls[p.calls["family"] == "gemm"]
    assert len(products) == 4 * (2 + 1 + 3), (
        "forward, again up to what the backward pass needs, and gradients"
    )
    assert (p.calls["op"] == "foreach_norm").sum() == 1 and (
        p.calls["family"] == "memcpy_d2h"
    ).sum() == 1


def test_a_batch_may_be_a_dict_of_keywords_whose_model_returns_its_loss() -> None:
    class Labelled(Net):
        def forward(self, x: Any, labels: Any = None) -> Any:  # type: ignore[override]
            return {"loss": F.cross_entropy(super().forward(x), labels)}

    x, y = batch(16)
    p = predict("V100", model=Labelled(), batch={"x": x, "labels": y})
    assert p.batch_size == 16 and p.calls is not None and (p.calls["family"] == "loss").sum() == 2
    losses = predict(
        "V100",
        model=lambda: Labelled(),
        batch=lambda size: dict(zip(("x", "labels"), batch(size), strict=True)),
    )
    assert losses.batch_size == 32


def test_grids_plans_and_advice_take_steps_of_the_user() -> None:
    table = predict_grid(
        "V100,T4", model=Net, batch=batch, loss=F.cross_entropy, batch_size="32,8192"
    )
    assert (
        list(table["model"].unique()) == ["Net"]
        and len(table) == 4
        and table["unpredicted"].isna().all()
    )
    one = compare("V100", step=make_step, batch_size="32,8192").table
    assert list(one["predicted_us"]) == list(table["predicted_us"][:2])
    best = plan(
        "samples_per_s", "A100,T4", Net, batch=batch, loss=F.cross_entropy, batch_size="32,8192"
    ).best
    assert (best.question.gpu.name, best.question.batch_size) == ("A100-PCIE-40GB", 8192), (
        "its host is faster"
    )
    advice = advise("V100", model=Net, batch=batch, loss=F.cross_entropy, batch_size=32)
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
        ({"model": Net(), "batch": batch, "loss": "mse"}, "loss=str: give a function"),
        ({"model": Net(), "batch": batch, "procedure": 3}, "procedure=int: give a function"),
        (
            {"model": Net(), "batch": batch, "optimizer": torch.optim.SGD(Net().parameters())},
            "optimizer= updates no parameter of model=Net: make it from those, or give its class",
        ),
        (
            {"model": Net(), "batch": batch, "optimizer": [torch.optim.SGD]},
            "optimizer=list: give one optimizer of the module",
        ),
        ({"model": Net(), "batch": batch, "los": F.cross_entropy}, "did you mean 'loss'?"),
        ({"model": "resnet50", "optmizer": torch.optim.Adam}, "did you mean 'optimizer'?"),
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
            {"model": lambda width: Net(width), "batch": batch},
            "model=<lambda>: it is called without arguments",
        ),
        (
            {"model": lambda: 3, "batch": batch},
            "model=<lambda>: it returns int, not a torch.nn.Module",
        ),
        (
            {"model": Net, "batch": batch, "procedure": lambda b, o: None},
            "procedure= uses the module that model= names",
        ),
        (
            {"model": Net(), "batch": batch, "procedure": lambda x: None},
            "procedure(batch, optimizers), with the tuple",
        ),
        (
            {"model": Net, "batch": batch, "optimizer": torch.optim.SGD(Net().parameters())},
            "optimizer= updates another module",
        ),
        ({"model": Net(), "batch": (3, 4)}, "batch=: give tensors such as (x, y)"),
        (
            {"model": Net(), "batch": batch, "loss": lambda *_: 1 / 0},
            "model=Net: its code fails: ZeroDivisionError",
        ),
        ({"gpu": "local", "step": make_step}, "gpu=local measures a step that a file defines"),
    ],
)
def test_what_cannot_be_taken_says_what_to_give(given: Any, says: str) -> None:
    with pytest.raises((InputError, ConfigError)) as refused:
        predict(**given)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_no_given_step_is_left_behind() -> None:
    from pipeline.workloads import user_steps

    with pytest.raises(SteptimeError):
        predict("V100", model=Net(), batch=batch, loss=lambda *_: 1 / 0)
    assert not user_steps._MAKERS


def test_a_scaler_that_pytorch_disabled_before_the_step_is_reported() -> None:
    with warnings.catch_warnings(action="ignore"):  # PyTorch's own
        scaler = torch.amp.GradScaler("cuda")
    model = Net()

    def procedure(batch: Any, optimizers: Any) -> None:
        scaler.scale(F.cross_entropy(model(batch[0]), batch[1])).backward()
        scaler.step(optimizers[0])

    given = {"model": model, "batch": batch(8), "procedure": procedure}
    if torch.cuda.is_available():
        pytest.skip("it is enabled here")
    with pytest.warns(UserWarning, match="GradScaler: it was made before the step"):
        predict("V100", **given)


def test_tokens_of_ones_own_model_are_the_width_of_inputs_and_targets_in_whole_numbers() -> None:
    reader = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 100))

    def loss(out: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out.flatten(0, 1), ids.flatten())

    ids = torch.randint(100, (4, 16))
    p = predict("V100", model=reader, batch=(ids, ids.clone()), loss=loss)
    assert p.tokens_per_s == pytest.approx(16 * p.samples_per_s)
    assert predict("V100", model=Net, batch=batch, loss=F.cross_entropy).tokens_per_s is None

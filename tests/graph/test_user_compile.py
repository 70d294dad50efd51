"""A user's own `torch.compile`: what it compiles is predicted as compiled, and the user's objects stay as they are."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pipeline.answers.predict import predict
from pipeline.as_on_cuda.compiled_optimizers import update_of
from pipeline.errors import SteptimeWarning

BATCH = torch.rand(64, 256), torch.randint(10, (64,))
OPTIONS = {"batch": BATCH, "loss": nn.CrossEntropyLoss()}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.GELU())
        self.reads = False

    def forward(self, x):
        x = self.layers(x)
        return x * 2 if self.reads and x.sum().item() > 0 else x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Block(), nn.LayerNorm(512), nn.Linear(512, 10)

    def forward(self, x):
        return self.head(self.second(self.first(x)))


def families(prediction, phase: str) -> list[str]:
    calls = prediction.calls
    calls = calls[(calls["phase"] == phase) & (calls["family"] != "elementwise")]
    return sorted(calls["family"].dropna())


def test_a_compiled_model_is_predicted_as_with_the_option_and_stays_as_it_is() -> None:
    net = Net()
    own = torch.compile(net)
    attributes, weights = set(vars(own)), [*net.parameters()]
    prediction = predict("A100", model=own, **OPTIONS)
    assert prediction.title.startswith("Net on A100")
    assert set(vars(own)) == attributes and own._orig_mod is net
    assert all(one is other for one, other in zip(weights, net.parameters(), strict=True))
    asked = predict("A100", model=net, model__compile=True, **OPTIONS)
    assert prediction.warnings == asked.warnings
    assert prediction.asked["compiled"] == asked.asked["compiled"]
    assert prediction.predicted_us == pytest.approx(asked.predicted_us, rel=1e-3)
    assert {"Net.first.layers.0"} <= set(prediction.calls["module"].dropna())
    assert families(prediction, "backward").count("loss") == 1  # the loss is not compiled


def test_only_compiled_parts_of_a_model_are_compiled() -> None:
    net = Net()
    net.first.compile()
    prediction = predict("A100", model=net, **OPTIONS)
    modules = prediction.calls.groupby("family")["module"].agg(set)
    assert modules["layer_norm"] == {"Net.second"}
    assert all(name.startswith("Net.first") for name in modules["fused"])
    assert net.first._compiled_call_impl is not None


def test_a_value_that_compiled_code_reads_is_a_graph_break_and_a_wait() -> None:
    net = Net()
    net.first.reads = True
    with pytest.warns(SteptimeWarning, match="2 graph breaks"):  # in the block, and at its call
        prediction = predict("A100", model=net, model__compile=True, **OPTIONS)
    assert families(prediction, "forward").count("memcpy_d2h") == 1
    assert "2 graph breaks" in prediction.as_dict()["compiled"]


def test_modules_that_the_compiler_leaves_out_count_as_written() -> None:
    class Recurrent(Net):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.LSTM(512, 512, batch_first=True)

        def forward(self, x):
            return self.head(self.second(self.first(x)[:, None])[0][:, 0])

    prediction = predict("A100", model=torch.compile(Recurrent()), model__compile=True, **OPTIONS)
    assert families(prediction, "forward") == ["fused", "gemm", "gemm", "rnn"]


def test_a_compiled_step_of_an_optimizer_is_one_pass_over_its_tensors() -> None:
    net = nn.Linear(256, 10)
    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.step = torch.compile(optimizer.step)
    prediction = predict("A100", model=torch.compile(net), optimizer=optimizer, **OPTIONS)
    calls = prediction.calls.dropna(subset="family").query("phase == 'optimizer'")
    size = sum(weight.nbytes for weight in net.parameters())
    columns = ["family", "bytes_read", "bytes_written"]
    assert calls[columns].values.tolist() == [["fused", 4 * size, 3 * size]]
    assert not any("compiled step of" in text for text in prediction.warnings)


def test_a_kernel_of_an_optimizer_has_at_most_250_operands() -> None:
    weights = [nn.Parameter(torch.empty(3)) for _ in range(148)]
    launches = update_of(torch.optim.Adam(weights))
    assert [each.rows for each in launches] == [60] * 7 + [24]


def test_a_gpu_that_triton_does_not_know_runs_the_step_as_it_is_written() -> None:
    with pytest.warns(SteptimeWarning, match=r"torch.compile on P100: Triton needs"):
        prediction = predict("P100", model=torch.compile(Net()), **OPTIONS)
    assert "fused" not in families(prediction, "forward")


@pytest.mark.parametrize(
    "loss",
    [
        torch.compile(nn.CrossEntropyLoss()),
        torch.compile(torch.compile(nn.CrossEntropyLoss())),
    ],
)
def test_a_compiled_loss_is_compiled_alone(loss) -> None:
    net = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 10))
    prediction = predict("A100", model=net, batch=BATCH, loss=loss)
    assert families(prediction, "loss") == ["fused", "fused"]
    backward = families(prediction, "backward")
    assert backward.count("fused") == 1 and {"layer_norm"} <= {*backward} and "loss" not in backward


def test_a_compiled_function_is_compiled_with_all_that_it_calls() -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())

    @torch.compile
    def train(x, y):
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    def procedure(batch, optimizers):
        train(*batch)
        with torch.no_grad():
            net(batch[0])  # not compiled

    step = {"batch": BATCH, "optimizer": optimizer, "procedure": procedure}
    with pytest.warns(SteptimeWarning, match="1 graph break"):  # at the backward pass
        prediction = predict("A100", model=net, **step)
    assert families(prediction, "forward").count("layer_norm") == 1
    assert families(prediction, "forward").count("fused") == 3
    assert {*families(prediction, "backward")} == {"fused", "gemm"}
    assert families(prediction, "optimizer") == ["fused"]


def test_one_function_may_be_compiled_and_called_several_times_in_a_row() -> None:
    turn = torch.compile(lambda x: torch.cat((-x[:, 128:], x[:, :128]), 1))

    class Turned(nn.Linear):
        def forward(self, x):
            return super().forward(turn(x * 2) * turn(x * 3))

    calls = predict("A100", model=Turned(256, 10), **OPTIONS).calls
    assert calls.loc[calls["family"] == "fused", "phase"].tolist() == ["forward"] * 2


def test_an_optimizer_whose_compiled_step_is_not_known_is_named() -> None:
    net = nn.Linear(256, 10)
    optimizer = torch.optim.NAdam(net.parameters())
    optimizer.step = torch.compile(optimizer.step)
    prediction = predict("A100", model=net, optimizer=optimizer, **OPTIONS)
    assert "torch.compile: predicted as without the compiled step of NAdam" in prediction.warnings
    assert {*families(prediction, "optimizer")} == {"optimizer"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch leaves it on where there is a GPU")
def test_decorators_of_autocast_cast_in_compiled_code_as_contexts_do() -> None:
    def make():
        class Cast(nn.Linear):
            @torch.autocast("cuda", dtype=torch.bfloat16)
            def forward(self, x):
                return super().forward(x)

        return torch.compile(Cast(256, 10))

    class Context(nn.Linear):
        def forward(self, x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return super().forward(x)

    made = predict("A100", model=make, **OPTIONS)
    with pytest.warns(SteptimeWarning, match="created before the step"):
        before = predict("A100", model=make(), **OPTIONS)
    context = predict("A100", model=torch.compile(Context(256, 10)), **OPTIONS)
    assert made.asked["compiled"] == before.asked["compiled"] == context.asked["compiled"]
    assert made.predicted_us == before.predicted_us


def test_modes_of_a_user_are_cuda_graphs_and_a_note() -> None:
    def asked(net, **mode):
        return predict("A100", model=torch.compile(net, **mode), **OPTIONS)

    usual = asked(torch.compile(Net()), dynamic=True, fullgraph=True)
    with pytest.warns(SteptimeWarning, match=r"without coordinate_descent_tuning, max"):
        graphed = asked(Net(), mode="max-autotune")
    assert graphed.asked["compiled"] == usual.asked["compiled"] + ", one CUDA graph"
    assert graphed.host_us < 0.9 * usual.host_us
    assert graphed.active_us == pytest.approx(usual.active_us)

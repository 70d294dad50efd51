"""A user's own `torch.compile`: what it compiles is predicted as compiled, and the user's objects stay as they are."""

import pytest
import torch
from torch import nn

from pipeline.answers.predict import predict
from pipeline.as_on_cuda.compiled_optimizers import update_of
from pipeline.errors import SteptimeWarning

BATCH = torch.rand(64, 256), torch.randint(10, (64,))
OPTIONS = {"batch": BATCH, "loss": nn.CrossEntropyLoss()}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 512), nn.GELU(), nn.LayerNorm(512))
        self.reads = False

    def forward(self, x):
        x = self.layers(x)
        return x * 2 if self.reads and x.sum().item() > 0 else x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Block(256), Block(512), nn.Linear(512, 10)

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
    for model in (net, own):
        asked = predict("A100", model=model, model__compile=True, **OPTIONS)
        assert prediction.warnings == asked.warnings
        assert prediction.asked["compiled"] == asked.asked["compiled"]
    assert prediction.predicted_us == pytest.approx(asked.predicted_us, rel=1e-3)
    assert {"Net.second.layers.0"} <= set(prediction.calls["module"].dropna())
    assert families(prediction, "backward").count("loss") == 1  # the loss is not compiled


def test_only_compiled_parts_of_a_model_are_compiled() -> None:
    net = Net()
    net.first.compile()
    prediction = predict("A100", model=net, **OPTIONS)
    modules = prediction.calls.groupby("family")["module"].agg(set)
    assert modules["layer_norm"] == {"Net.second.layers.2"}
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

    prediction = predict("A100", model=Recurrent(), model__compile=True, **OPTIONS)
    assert families(prediction, "forward") == ["fused", "gemm", "gemm", "rnn"]


def test_a_compiled_step_of_an_optimizer_is_one_pass_over_its_tensors() -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.step = torch.compile(optimizer.step)
    prediction = predict("A100", model=torch.compile(net), optimizer=optimizer, **OPTIONS)
    calls = prediction.calls.dropna(subset="family").query("phase == 'optimizer'")
    size = sum(weight.nbytes for weight in net.parameters())
    columns = ["family", "bytes_read", "bytes_written"]
    assert calls[columns].values.tolist() == [["fused", 4 * size, 3 * size]]


def test_a_kernel_of_an_optimizer_has_at_most_250_operands() -> None:
    weights = [nn.Parameter(torch.empty(3)) for _ in range(148)]
    launches = update_of(torch.optim.Adam(weights))
    assert [each.rows for each in launches] == [60] * 7 + [24]


def test_a_gpu_that_triton_does_not_know_runs_the_step_as_it_is_written() -> None:
    with pytest.warns(SteptimeWarning, match=r"torch.compile on P100: Triton needs"):
        prediction = predict("P100", model=torch.compile(Net()), **OPTIONS)
    assert "fused" not in families(prediction, "forward")


def test_a_compiled_function_that_is_no_module_is_reported() -> None:
    @torch.compile
    def cube(x):
        return x**3

    class Cubed(Net):
        def forward(self, x):
            return cube(super().forward(x))

    with pytest.warns(SteptimeWarning, match=r"torch.compile\(cube\): predicted is the function"):
        predict("A100", model=Cubed(), **OPTIONS)


def test_modes_of_a_user_are_cuda_graphs_and_a_note() -> None:
    def asked(**mode):
        return predict("A100", model=torch.compile(Net(), **mode), **OPTIONS)

    usual, graphed = asked(dynamic=True, fullgraph=True), asked(mode="reduce-overhead")
    assert graphed.asked["compiled"] == usual.asked["compiled"] + ", one CUDA graph"
    assert graphed.host_us < 0.9 * usual.host_us
    with pytest.warns(SteptimeWarning, match=r"without the options coordinate_descent_tuning, max"):
        assert asked(mode="max-autotune-no-cudagraphs").predicted_us == usual.predicted_us

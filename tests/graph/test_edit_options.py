"""Edits by the names of operators: what they change in the step, in a point's paths, and in the prediction."""

import pytest

from pipeline.answers.predict import predict, predict_grid
from pipeline.errors import ConfigError, InputError
from pipeline.flow import Flow
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.graph.edit_options import edited
from pipeline.graph.table import Graph, Memory, Node, Tensor, write_nodes
from pipeline.question.question import ask
from pipeline.question.settings import EditSettings
from tests.workloads.small import small

X = Tensor((64, 32), "fp32", (32, 1))
HOLDER = "autograd::engine::evaluate_function: "


def step(*names: str) -> Graph:
    """A step with these elementwise operators one after another, and their backward pass with one `mul` each."""
    nodes: list[Node] = []

    def add(name: str, parent: int | None = None, **more) -> int:
        nodes.append(
            Node(len(nodes), name, parent, len(nodes), is_top_level=parent is None, **more)
        )
        return len(nodes) - 1

    for number, name in enumerate(names):
        add(name, inputs=(X,), values=(None,), outputs=(X,), attributes={"sequence": number})
    for number in reversed(range(len(names))):
        holder = add(f"{HOLDER}B{number}", thread=1, phase="backward")
        held = add(
            f"B{number}", holder, thread=1, phase="backward", attributes={"sequence": number}
        )
        add(
            "aten::mul",
            held,
            thread=1,
            phase="backward",
            inputs=(X, X),
            values=(None, None),
            outputs=(X,),
        )
    return Graph(write_nodes(nodes), Memory(parameters=8))


def names(graph: Graph) -> list[str]:
    return [
        name.removeprefix("aten::")
        for name in graph.table["name"]
        if not name.startswith((HOLDER, "B"))
    ]


@pytest.fixture(scope="module")
def translator():
    return capture(small("transformer"), 4)


def test_a_removed_operator_takes_its_part_of_the_backward_pass_with_it():
    """relu gelu | gelu' relu'  becomes  gelu | gelu'."""
    left = edited(step("aten::relu", "aten::gelu"), EditSettings(remove=("aten::relu",)))
    assert names(left) == ["gelu", "mul"]
    assert [name for name in left.table["name"] if name.startswith("B")] == ["B1"]
    assert left.memory == Memory(parameters=8) and "edit.remove=aten::relu" in left.warnings[0]


def test_a_substitute_brings_its_own_gradient():
    edited_graph = edited(
        step("aten::relu", "aten::exp"), EditSettings(substitute=("aten::relu/aten::gelu",))
    )
    assert names(edited_graph) == ["gelu", "exp", "mul", "gelu_backward"]
    edited_graph = edited(
        step("aten::relu"), EditSettings(substitute=("aten::relu/aten::exp+aten::gelu",))
    )
    assert names(edited_graph) == ["exp", "gelu", "gelu_backward", "mul"]


def test_edits_are_applied_one_after_another():
    edit = EditSettings(
        remove=("aten::exp",),
        substitute=("aten::relu/aten::tanh",),
    )
    assert names(edited(step("aten::relu", "aten::exp", "aten::gelu"), edit))[:2] == [
        "tanh",
        "gelu",
    ]


def test_dropout_leaves_a_captured_step_in_both_directions(translator):
    left = edited(translator, EditSettings(remove=("aten::dropout",)))
    assert "dropout" in set(map_calls(translator)["family"]) and "dropout" not in set(
        map_calls(left)["family"]
    )
    gone = len(map_calls(translator)) - len(map_calls(left))
    assert gone == 2 * sum(translator.table["name"] == "aten::dropout")
    assert names(edited(translator, EditSettings(remove=("aten::*dropout",)))) == names(left)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            {"remove": ("aten::drop",)},
            "edit.remove=aten::drop: the step has no operator aten::drop: near are aten::dropout",
        ),
        ({"remove": ("dropout",)}, "no operator dropout: near are aten::dropout"),
        ({"substitute": ("aten::rel/aten::gelu",)}, "no operator aten::rel: near are aten::relu"),
        (
            {"substitute": ("aten::relu/aten::gleu",)},
            "aten::gleu is not in the operator map: near are aten::glu",
        ),
    ],
)
def test_an_edit_that_matches_nothing_says_what_is_near(translator, edit, said):
    with pytest.raises(InputError) as caught:
        edited(translator, EditSettings(**edit))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("edit.remove=null", "write edit.remove=aten::dropout"),
        ("edit.remove=[]", "write edit.remove=aten::dropout"),
        ("edit.substitute=aten::relu", "write edit.substitute=aten::relu/aten::gelu"),
        ("edit.substitute=a/b/c", "write edit.substitute="),
        ("edit.remove=[none,aten::relu]", "none stands alone"),
        ("edit.embedding=fused", "write model.embedding="),
        ("edit.remov=aten::relu", "did you mean 'edit.remove'"),
    ],
)
def test_a_wrong_edit_is_refused_before_anything_is_captured(text, said):
    with pytest.raises(ConfigError) as caught:
        ask(["model=dlrm_small", text])
    assert said in str(caught.value)


def test_an_edited_step_cannot_be_measured_here():
    with pytest.raises(ConfigError, match="gpu=local is measured as it is"):
        ask(["gpu=local", "model=dlrm_small", "edit.remove=aten::relu"])


def test_edits_are_part_of_the_paths_of_a_point():
    plain, removed, several = (
        ask(["model=dlrm_small", *texts])
        for texts in ([], ["edit.remove=aten::relu"], ["edit.remove=[aten::relu,aten::cat]"])
    )
    assert ask(["model=dlrm_small", "edit.remove=none"]) != removed
    assert ask(["model=dlrm_small", "edit.remove=none"]).variant == plain.variant == "default"
    assert removed.variant == removed.edit_variant == "edit.remove-aten.relu"
    assert several.variant == several.edit_variant not in ("default", removed.variant)
    assert plain.model_variant == removed.model_variant  # they share the captured graph
    flow = Flow.from_config({"model": "dlrm_small", "overrides": "edit.remove=none,aten::relu"})
    graphs = [
        flow.artifacts.graph(p.model, p.model_variant, p.batch_size, p.edit_variant)
        for p in flow.points
    ]
    assert graphs == [
        "results/graphs/dlrm_small/default/b1024/graph.parquet",
        "results/graphs/dlrm_small/default/edit.remove-aten.relu/b1024/graph.parquet",
    ]


def test_one_prediction_and_a_grid_agree_on_an_edited_step():
    wanted = {"model": "dlrm_small", "batch_size": 64, "predict.draws": 64}
    with pytest.warns(match="the memory is that of the step without edit__remove=.aten::relu"):
        table = predict_grid("V100", **wanted, edit__remove="none,aten::relu,aten::rleu")
        alone = predict("V100", **wanted, edit__remove="aten::relu")
    assert table["predicted_us"][1] == alone.predicted_us < table["predicted_us"][0]
    assert table["predicted_us"][0] == predict("V100", **wanted).predicted_us
    assert "near are aten::relu" in table["unpredicted"][2]
    assert "(edit.remove=aten::relu predict.draws=64)" in str(alone)

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

    def add(name: str, parent: int | None = None, *inputs: Tensor, **more) -> int:
        given = {"inputs": inputs, "values": (None,) * len(inputs), "outputs": inputs[:1], **more}
        at = len(nodes)
        nodes.append(Node(at, name, parent, at, is_top_level=parent is None, **given))
        return at

    for number, name in enumerate(names):
        add(name, None, X, attributes={"sequence": number})
    backward = {"thread": 1, "phase": "backward"}
    for number in reversed(range(len(names))):
        holder = add(f"{HOLDER}B{number}", **backward)
        held = add(f"B{number}", holder, attributes={"sequence": number}, **backward)
        add("aten::mul", held, X, X, **backward)
    return Graph(write_nodes(nodes), Memory(parameters=8))


def names(graph: Graph) -> str:
    found = graph.table["name"].str.removeprefix("aten::")
    return " ".join(found[~found.str.startswith((HOLDER, "B"))])


@pytest.fixture(scope="module")
def translator():
    return capture(small("transformer"), 4)


def test_a_removed_operator_takes_its_part_of_the_backward_pass_with_it():
    left = edited(step("aten::relu", "aten::gelu"), EditSettings(remove=("aten::relu",)))
    assert names(left) == "gelu mul"
    assert [name for name in left.table["name"] if name.startswith("B")] == ["B1"]
    assert left.memory == Memory(parameters=8) and "edit.remove=aten::relu" in left.warnings[0]


@pytest.mark.parametrize(
    ("before", "substitute", "after"),
    [
        ("relu exp", "aten::relu/aten::gelu", "gelu exp mul gelu_backward"),
        ("relu", "aten::relu/aten::exp+aten::gelu", "exp gelu gelu_backward mul"),
    ],
)
def test_a_substitute_brings_its_own_gradient(before, substitute, after):
    graph = step(*(f"aten::{name}" for name in before.split()))
    assert names(edited(graph, EditSettings(substitute=(substitute,)))) == after


def test_edits_are_applied_one_after_another():
    edit = EditSettings(remove=("aten::exp",), substitute=("aten::relu/aten::tanh",))
    after = names(edited(step("aten::relu", "aten::exp", "aten::gelu"), edit))
    assert after.startswith("tanh gelu ")


def test_dropout_leaves_a_captured_step_in_both_directions(translator):
    left = edited(translator, EditSettings(remove=("aten::*dropout",)))
    before, after = map_calls(translator), map_calls(left)
    assert "dropout" in set(before["family"]) and "dropout" not in set(after["family"])
    assert len(before) - len(after) == 2 * sum(translator.table["name"] == "aten::dropout")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            {"remove": ("aten::drop",)},
            "edit.remove=aten::drop: the step has no operator aten::drop: near are aten::dropout",
        ),
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
        ("edit.remove=[]", "write edit.remove=aten::dropout"),
        ("edit.substitute=aten::relu", "write edit.substitute=aten::relu/aten::gelu"),
        ("edit.remove=[none,aten::relu]", "none stands alone"),
        ("edit.embedding=fused", r"write model\.embedding="),
        ("edit.remov=aten::relu", r"did you mean 'edit\.remove'"),
        ("edit.remove=aten::relu gpu=local", "gpu=local is measured as it is"),
    ],
)
def test_a_wrong_edit_is_refused_before_anything_is_captured(text, said):
    with pytest.raises(ConfigError, match=said):
        ask(["model=dlrm_small", *text.split()])


def test_edits_are_part_of_the_paths_of_a_point():
    plain, none, removed = (
        ask(["model=dlrm_small", *texts])
        for texts in ([], ["edit.remove=none"], ["edit.remove=[aten::relu,aten::cat]"])
    )
    assert none != removed and none.variant == plain.variant == "default"
    assert removed.variant == removed.edit_variant != "default"
    assert plain.model_variant == removed.model_variant  # they share the captured graph
    flow = Flow.from_config({"model": "dlrm_small", "overrides": "edit.remove=aten::relu"})
    (p,) = flow.points
    graph = flow.artifacts.graph(p.model, p.model_variant, p.batch_size, p.edit_variant)
    folder = "results/graphs/dlrm_small/default/edit.remove-aten.relu"
    assert graph == f"{folder}/b1024/graph.parquet"


def test_one_prediction_and_a_grid_agree_on_an_edited_step():
    wanted = {"model": "dlrm_small", "batch_size": 64, "predict.draws": 64}
    with pytest.warns(match="the memory is that of the step without edit__remove=.aten::relu"):
        table = predict_grid("V100", **wanted, edit__remove="none,aten::relu,aten::rleu")
        alone = predict("V100", **wanted, edit__remove="aten::relu")
    assert table["predicted_us"][1] == alone.predicted_us < table["predicted_us"][0]
    assert table["predicted_us"][0] == predict("V100", **wanted).predicted_us
    assert "near are aten::relu" in table["unpredicted"][2]
    assert "(edit.remove=aten::relu predict.draws=64)" in str(alone)

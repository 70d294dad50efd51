"""Bad samples and calls: what is refused, what is dropped, and how shapes are split."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.answers.kernel_commands import fit_command, predict_command, read_samples
from pipeline.errors import InputError, TableError, UnknownNameError
from pipeline.families import FAMILIES, OP_NAMES
from pipeline.kernels.samples import assign_folds, bad_dims, clean_samples, with_families
from pipeline.transfer.transfer_command import read_measured


def softmax(**values):
    return pd.DataFrame(
        {"op": "softmax", "B": [128, 256], "H": [512, 1024], "latency_us": [40.0, 50.0]} | values
    )


def predicted(folder, calls):
    """What the command predicts for a table of calls on a V100."""
    calls.to_parquet(folder / "calls.parquet")
    predict_command("V100", None, folder / "calls.parquet", folder / "out.parquet")
    return pd.read_parquet(folder / "out.parquet")


@pytest.mark.parametrize(
    ("column", "values"),
    [("latency_us", (np.nan, 0.0, -3.0, np.inf, 1e12)), ("B", (np.nan, 0, -5, 2.5, 1e15))],
)
def test_samples_that_cannot_be_measurements_are_dropped_with_a_warning(column, values):
    for value in values:
        with pytest.warns(UserWarning, match="1 of 2 samples dropped"):
            kept = clean_samples(with_families(softmax(**{column: [value, 256]}), "t"))
        assert kept[column].tolist() == [256]


@pytest.mark.parametrize("size", [None, -5, 2.5, "many"])
def test_calls_of_impossible_sizes_are_refused_by_row(tmp_path, size):
    table = pd.DataFrame({"op": "softmax", "B": pd.Series([128, size], dtype=object), "H": 64})
    table["B"] = table["B"].astype(str) if size == "many" else table["B"].astype("float64")
    with pytest.raises(TableError, match="row 1: softmax: B"):
        predicted(tmp_path, table)
    assert not (tmp_path / "out.parquet").exists()


def test_calls_are_not_overwritten_with_their_predictions(tmp_path):
    path = tmp_path / "calls.parquet"
    softmax().to_parquet(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="is also an input"):
        predict_command("V100", None, path, tmp_path / "." / "calls.parquet")
    assert path.read_bytes() == before


def test_columns_that_pandas_wrote_as_labels_are_kept_and_read(tmp_path):
    calls = softmax().assign(id=["a", "b"])
    for table, labels in (
        (calls.set_index(["id", "op"]), [0, 1]),
        (calls.set_axis([7, 3]), [7, 3]),
    ):
        found = predicted(tmp_path, table)
        assert found["id"].tolist() == ["a", "b"] and found["op"].tolist() == ["softmax"] * 2
        assert found.index.tolist() == labels


def test_samples_of_other_gpus_are_not_taken_for_an_index_or_an_empty_name(tmp_path):
    path = tmp_path / "samples.parquet"
    both = pd.concat([softmax(gpu=gpu) for gpu in ("V100", "T4", None)])
    both.set_index("gpu").to_parquet(path)
    assert len(read_samples(path, "V100")[0]) == 2
    for gpu, said in ((None, "no GPU"), ("P4", "P4")):
        softmax(gpu=gpu).to_parquet(path)
        with pytest.raises(TableError, match=f"no samples of V100: the table has {said}"):
            read_samples(path, "V100")


def test_samples_that_name_their_family_alone_are_read_on_every_gpu(tmp_path):
    table = softmax().drop(columns="op").assign(family="softmax", gpu="A100-PCIE-40GB")
    table.to_parquet(tmp_path / "samples.parquet")
    assert len(read_samples(tmp_path / "samples.parquet", "A100")[0]) == 2


def test_a_dtype_is_known_by_our_name_or_pytorchs(tmp_path):
    table = pd.DataFrame({"op": "softmax", "B": [8] * 4, "H": 64})
    table["dtype"] = ["bf16", "torch.bfloat16", "float16", None]
    assert with_families(table, "t")["dtype"].tolist() == ["bf16", "bf16", "fp16", "fp32"]
    with pytest.raises(TableError, match="row 1: unknown dtype 'fp23': did you mean"):
        predicted(tmp_path, table.assign(dtype=["fp32", "fp23", None, "fp23"]))
    assert not (tmp_path / "out.parquet").exists()


def test_every_family_can_be_asked_by_its_name_or_an_op_of_its_own(tmp_path):
    sizes = dict.fromkeys(("B", "C", "in_channels", "out_channels"), 8)
    sizes |= {"F": 27, "T": 4, "kernel_size": 3, "input_size": 28, "bytes": 1 << 20}
    asked = [
        {"op": op, **{dim: sizes.get(dim, 64) for dim in FAMILIES[name].required}}
        for op, name in OP_NAMES.items()
    ]
    kernel_us = predicted(tmp_path, pd.DataFrame(asked)).set_index("op")["kernel_us"]
    assert (kernel_us > 0).all()
    assert {name for name, entry in FAMILIES.items() if entry.required} == set(OP_NAMES.values())
    for family, op in (("concat", "cat"), ("embedding_backward", "fused_sgd"), ("rnn", "lstm")):
        assert kernel_us[family] == kernel_us[op]
    assert kernel_us["embedding_backward"] > kernel_us["embedding_forward"]


def test_an_unknown_family_is_called_one():
    with pytest.raises(
        TableError,
        match=r"row 1: unknown family 'embedding_forwards': did you mean 'embedding_forward'",
    ):
        with_families(pd.DataFrame({"family": ["gemm", "embedding_forwards"], "op": "linear"}), "t")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"op": ["softmin"], "B": [1], "H": [1]}, r"unknown op 'softmin'.*softmax"),
        ({"B": [1], "H": [1]}, "column op is missing"),
        ({"op": ["ln"], "B": [1]}, "column H is missing"),
    ],
)
def test_an_unknown_op_and_a_missing_column_are_named(tmp_path, call, says):
    with pytest.raises(TableError, match=says):
        predicted(tmp_path, pd.DataFrame(call))


@pytest.mark.parametrize("content", [None, b"not parquet"])
def test_a_missing_or_damaged_file_is_an_error_of_one_line(tmp_path, content):
    path = tmp_path / "calls.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TableError) as caught:
        predict_command("V100", None, path, tmp_path / "out.parquet")
    assert "\n" not in str(caught.value)


def test_unknown_names_list_the_choices(tmp_path):
    softmax().to_parquet(tmp_path / "s.parquet")
    with pytest.raises(UnknownNameError, match="V100"):
        fit_command(tmp_path / "s.parquet", "V1000", None, tmp_path / "out")
    with pytest.raises(UnknownNameError, match="gemm"):
        fit_command(tmp_path / "s.parquet", "V100", ["gem"], tmp_path / "out")
    with pytest.raises(InputError, match="no samples of family gemm"):
        fit_command(tmp_path / "s.parquet", "V100", ["gemm"], tmp_path / "out")


def test_a_shape_is_held_out_for_all_ops_at_once():
    sizes = np.random.default_rng(0).integers(1, 1000, (50, 2))
    shapes = pd.DataFrame(sizes, columns=["B", "H"])
    table = with_families(pd.concat([shapes.assign(op=op) for op in ("add", "softmax")]), "t")
    held = assign_folds(table, 5, seed=3) == 0
    assert (table.assign(held=held).groupby(["B", "H"])["held"].nunique() == 1).all()
    assert held.mean() == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    ("column", "kind"), [("B", "timedelta64[us]"), ("latency_us", "datetime64[us]"), ("B", "bool")]
)
def test_columns_that_hold_no_numbers_are_refused(tmp_path, column, kind):
    table = softmax()
    table[column] = table[column].astype("int64").astype(kind)
    path = tmp_path / "t.parquet"
    table.to_parquet(path)
    for read, *more in (
        (read_samples, path, "V100"),
        (read_measured, path),
        (predict_command, "V100", None, path, tmp_path / "out.parquet"),
    ):
        with pytest.raises(TableError, match=f"column {column} holds {kind[:4]}"):
            read(*more)


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    table = pa.Table.from_pandas(softmax())
    pq.write_table(table.append_column("B", table["B"]), tmp_path / "t.parquet")
    with pytest.raises(TableError, match=r"not a readable parquet file|column B is there twice"):
        read_samples(tmp_path / "t.parquet", "V100")


def test_a_name_of_thousands_of_characters_is_cut(tmp_path):
    with pytest.raises(TableError) as caught:
        with_families(pd.DataFrame({"op": ["x" * 5000]}), "t")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ({"groups": 3}, "conv: in_channels that groups does not divide"),
        ({"groups": 3, "in_channels": 66}, "conv: out_channels that groups does not divide"),
        ({"dilation": 40}, "a window larger than the padded image"),
    ],
)
def test_convolutions_that_cannot_exist_are_refused_as_calls_and_dropped_as_samples(
    tmp_path, dims, says
):
    shape = {"op": "conv", "B": 32, "in_channels": 64, "out_channels": 64, "kernel_size": 3}
    shape |= {"input_size": 56, "padding": 1, "latency_us": 100.0}
    table = pd.DataFrame([{**shape, "groups": 32, "dilation": 2}, {**shape, **dims}])
    with pytest.raises(TableError, match=f"row 1: .*{says}"):
        predicted(tmp_path, table)
    with pytest.warns(UserWarning, match="1 of 2 samples dropped"):
        assert len(read_samples(tmp_path / "calls.parquet", "V100")[0]) == 1


def test_a_factor_is_stored_transposed_or_not():
    table = with_families(
        pd.DataFrame({"op": "linear", "M": [8, 8], "N": 8, "K": 8, "trans_b": [1, 2]}), "t"
    )
    assert bad_dims(table).tolist() == ["", "trans_b = 2"]


def test_kernels_outside_the_samples_say_so_and_are_less_sure(tmp_path):
    source, out = tmp_path / "calls.parquet", tmp_path / "out.parquet"
    pd.DataFrame({"op": "softmax", "B": 4096, "H": [1024, 16384]}).to_parquet(source)
    assert predict_command("V100", None, source, out)["outside_range"] == 1
    near, far = pd.read_parquet(out).itertuples()
    assert (near.evidence, far.evidence) == ("pack", "pack extrapolated")
    assert near.p90_us / near.predicted_us < 1.1 and far.p90_us / far.predicted_us > 1.5
    assert near.kernel_p90_us / near.kernel_us < 1.1 and far.kernel_p90_us / far.kernel_us > 1.5

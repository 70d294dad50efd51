"""Files of fitted models: what is written is read back, and what is wrong with a file is named in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.errors import PackError, SteptimeError
from pipeline.model_files import (
    read_arrays,
    read_json,
    write_arrays,
    write_json,
)
from pipeline.paths import transfer_dir
from pipeline.transfer.utilisation import UtilisationModel

REMEDY = "fit it again"

ARRAYS = {
    "half": np.arange(6, dtype=np.float16).reshape(2, 3).T,
    "count": np.array([3], dtype=np.int64),
}


def refused(path: Path, call: Any) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(PackError) as caught:
        call()
    text = str(caught.value)
    assert str(path) in text and "\n" not in text and ";" in text
    return text


def test_arrays_and_metadata_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "new" / "m.safetensors"
    write_arrays(path, ARRAYS, {"kind": {"layers": 3, "of": ["a", 0.1]}})
    arrays, metadata = read_arrays(path, REMEDY)
    assert metadata == {"kind": {"layers": 3, "of": ["a", 0.1]}}
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert [each.name for each in path.parent.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage", "folder"])
def test_damaged_arrays_are_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "m.safetensors"
    write_arrays(path, ARRAYS)
    whole = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes({"cut": whole[:-3], "garbage": b"\xff" * 80}[damage])
    assert REMEDY in refused(path, lambda: read_arrays(path, REMEDY))


def test_other_versions_of_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file(ARRAYS, path, metadata={"steptime_format": "2"})
    assert "format 2" in refused(path, lambda: read_arrays(path, REMEDY))
    save_file(ARRAYS, path)  # written before versions were
    assert read_arrays(path, REMEDY)[1] == {}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_arrays_that_are_no_numbers_are_neither_written_nor_read(
    tmp_path: Path, value: float
) -> None:
    path, arrays = (
        tmp_path / "m.safetensors",
        {**ARRAYS, "weight0": np.array([[1.0, value]], dtype=np.float32)},
    )
    with pytest.raises(SteptimeError, match="'weight0' has NaN"):
        write_arrays(path, arrays)
    assert not list(tmp_path.iterdir())
    save_file(arrays, path)
    assert "'weight0' has NaN" in refused(path, lambda: read_arrays(path, REMEDY))


def test_json_is_read_back_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "family.json"
    write_json(path, {"b": [1, None], "a": Path("x")})
    assert read_json(path, REMEDY, ("a", "b")) == {"a": "x", "b": [1, None]}
    assert "c, d is missing" in refused(path, lambda: read_json(path, REMEDY, ("a", "c", "d")))
    for text in ('{"a": 1', "[1, 2]", "null"):
        path.write_text(text)
        assert REMEDY in refused(path, lambda: read_json(path, REMEDY, ("a",)))
    path.write_bytes(b"\xff\xfe{}")
    assert "not readable" in refused(path, lambda: read_json(path, REMEDY))


def test_shipped_cross_gpu_models_refuse_arrays_that_do_not_fit(tmp_path: Path) -> None:
    arrays, metadata = read_arrays(transfer_dir() / "gemm.safetensors", REMEDY)
    path = tmp_path / "m.safetensors"
    for key, array in arrays.items():
        write_arrays(path, {**arrays, key: array[..., None]}, metadata)
        assert "contradict each other" in refused(path, lambda: UtilisationModel.load(path))
    write_arrays(path, {each: arrays[each] for each in arrays if each != key}, metadata)
    assert f"array {key!r} of the" in refused(path, lambda: UtilisationModel.load(path))
    write_arrays(path, arrays, {"other": {}})
    assert "is missing" in refused(path, lambda: UtilisationModel.load(path))


def test_a_changed_number_of_an_array_is_found(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write_arrays(path, {"weight0": np.linspace(0, 1, 64, dtype=np.float32)})
    whole = path.read_bytes()
    for place in range(len(whole) - 256, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert "not those that were written" in refused(path, lambda: read_arrays(path, REMEDY))


def test_a_sealed_object_is_read_back_and_a_change_is_found(tmp_path: Path) -> None:
    path, values = (
        tmp_path / "family.json",
        {"a": [1, 2.5, None, 1e-300], "b": {"2": "x", "10": "µ"}, "c": tmp_path},
    )
    write_json(path, {**values, "b": {2: "x", 10: "µ"}}, sealed=True)
    assert read_json(path, REMEDY) == {**values, "c": str(tmp_path)}
    path.write_text(path.read_text().replace("2.5", "2.6"))
    assert "not those that were written" in refused(path, lambda: read_json(path, REMEDY))


def test_the_same_arrays_are_the_same_bytes_whatever_the_order_of_their_metadata(
    tmp_path: Path,
) -> None:
    arrays = {"b": np.arange(6.0).reshape(2, 3), "a": np.ones(5, dtype=np.float32)}
    facts = {f"fact{i}": i for i in range(20)}
    for name, given in (("a", facts), ("b", dict(reversed(facts.items())))):
        write_arrays(tmp_path / name, arrays, given)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

"""What ships is checked when it is loaded, and no file that is loaded can run code."""

from __future__ import annotations

import ast
import hashlib
import json
import pickle
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluation.figures.accuracy_inputs import read_any
from pipeline import model_files as packs
from pipeline.answers import transferred_models, who_answers
from pipeline.answers.gap_models import tensor_core_gemm_model, tensor_model
from pipeline.answers.who_answers import kernel_predictor, observations_in
from pipeline.errors import PackError, SteptimeError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.paths import project_dir

ROOT = project_dir()
PACKS = packs.packs_dir()


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(PACKS, tmp_path_factory.mktemp("copy") / "packs")


@pytest.fixture
def copy(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of all that ships, in the place of what ships. A test restores what it changes."""
    for module in (packs, transferred_models, who_answers):
        if hasattr(module, "packs_dir"):
            monkeypatch.setattr(module, "packs_dir", lambda: shipped)
    packs.check_pack.cache_clear()
    yield shipped
    packs.check_pack.cache_clear()


def load(name: str) -> object:
    """Load a shipped file in the way in which a prediction or a figure does."""
    top, *rest = name.split("/")
    if top == packs.TRANSFER:
        return (
            read_any([str(packs.packs_dir() / name)])
            if name.endswith(".csv")
            else packs.shipped_file(top, rest[0])
        )
    if not rest:
        return packs.shipped_file(packs.SHARED, name)
    if top == packs.HALF:
        return tensor_core_gemm_model(load_gpu(rest[0]))
    if name.endswith(".parquet"):
        return observations_in(packs.packs_dir() / name)
    return kernel_predictor(load_gpu(top), "auto")


FILES = sorted(
    path.relative_to(PACKS).as_posix()
    for path in PACKS.rglob("*")
    if path.is_file() and path.name != packs.MANIFEST and not path.name.startswith(".")
)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_of_any_shipped_file_is_found_when_it_is_loaded(
    copy: Path, name: str
) -> None:
    path = copy / name
    whole = path.read_bytes()
    middle = len(whole) // 2
    try:
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(PackError, match="damaged"):
            load(name)
    finally:
        path.write_bytes(whole)
    packs.check_pack.cache_clear()
    assert load(name) is not None


def test_a_model_that_was_added_to_a_pack_is_refused(copy: Path) -> None:
    added = copy / "V100" / "kernels" / "recurrent"
    shutil.copytree(copy / "V100" / "kernels" / "gemm", added)
    try:
        with pytest.raises(PackError, match="not in"):
            kernel_predictor(load_gpu("V100"), "auto")
    finally:
        shutil.rmtree(added)


def test_a_shared_file_that_is_missing_or_not_listed_is_refused(copy: Path) -> None:
    path, manifest = copy / "transfer/tensor_gemm.safetensors", copy / "transfer" / packs.MANIFEST
    whole = path.read_bytes()
    listed = manifest.read_text()
    values = json.loads(listed)
    del values["files"][path.name]
    try:
        for harm in (path.unlink, lambda: manifest.write_text(json.dumps(values))):
            harm()
            packs.check_pack.cache_clear()
            with pytest.raises(PackError, match=path.name):
                tensor_model()
            path.write_bytes(whole)
    finally:
        path.write_bytes(whole)
        manifest.write_text(listed)


class Planted:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.sign, "code has run")


@pytest.mark.parametrize(
    "name",
    [
        "V100/kernels/gemm/networks.safetensors",
        "V100/kernels/gemm/family.json",
        "V100/overhead_samples.parquet",
    ],
)
def test_a_planted_pickle_is_refused_and_not_run(copy: Path, name: str, tmp_path: Path) -> None:
    """A file of each kind that is read: the manifest says that the pickle belongs there."""
    sign, path, manifest = tmp_path / "sign", copy / name, copy / "V100" / packs.MANIFEST
    pickle.loads(harmful := pickle.dumps(Planted(sign)))
    assert sign.is_file(), "the pickle works"
    sign.unlink()
    whole, listed = path.read_bytes(), manifest.read_text()
    values = json.loads(listed)
    values["files"][name.removeprefix("V100/")] = {
        "bytes": len(harmful),
        "sha256": hashlib.sha256(harmful).hexdigest(),
    }
    try:
        path.write_bytes(harmful)
        manifest.write_text(json.dumps(values))
        with pytest.raises(SteptimeError, match=path.name):
            load(name)
    finally:
        path.write_bytes(whole)
        manifest.write_text(listed)
    assert not sign.exists(), "code of the file has run"


UNSAFE = re.compile(
    r"(pickle|dill|cloudpickle|shelve|marshal)\b.*|(torch|joblib)\.load|pd\.read_pickle"
    r"|yaml\.(unsafe|full)_load|eval|exec|allow_pickle"
)


def unsafe(text: str) -> list[str]:
    """Imports, calls and arguments with which reading a file may run code."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            found += [f"{module}.{each.name}" if module else each.name for each in node.names]
        elif isinstance(node, ast.Call):
            found += [ast.unparse(node.func), *(each.arg for each in node.keywords if each.arg)]
    return [name for name in found if UNSAFE.fullmatch(name)]


def test_no_module_reads_a_format_that_can_run_code() -> None:
    for path in [*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "workflow").rglob("*.py")]:
        assert not unsafe(path.read_text(encoding="utf-8")), path
    text = "import pickle\nfrom joblib import load\ntorch.load(x)\nf(allow_pickle=True)\neval(x)\n"
    assert unsafe(text) == ["pickle", "joblib.load", "torch.load", "allow_pickle", "eval"]

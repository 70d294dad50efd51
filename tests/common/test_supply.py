"""What ships is checked when it is loaded, and no file that is loaded can run code."""

from __future__ import annotations

import ast
import hashlib
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluation.figures.accuracy_inputs import read_any
from pipeline import model_files as packs
from pipeline.answers import transferred_models, who_answers
from pipeline.answers.gap_models import attention_model, tensor_core_gemm_model, tensor_model
from pipeline.answers.kernel_commands import predict_command
from pipeline.answers.who_answers import kernel_predictor, observations_in, overhead_model
from pipeline.errors import PackError, SteptimeError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.hosts import load_host
from pipeline.kernels.collective_bandwidth import collective_model
from pipeline.paths import project_dir
from pipeline.question.question import ask
from pipeline.transfer.shipped_models import load_models

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


SHARED_MODELS: dict[str, Callable[[], object]] = {
    "attention.json": lambda: attention_model(load_gpu("H100")),
    "collectives.json": lambda: collective_model(load_gpu("H100")),
    "transfer/gemm.safetensors": load_models,
    "transfer/tensor_gemm.safetensors": tensor_model,
}


@pytest.mark.parametrize("name", SHARED_MODELS)
def test_a_shared_file_that_is_missing_or_not_listed_is_refused(copy: Path, name: str) -> None:
    assert SHARED_MODELS[name]()
    path = copy / name
    whole, manifest = path.read_bytes(), path.with_name(packs.MANIFEST)
    listed = manifest.read_text()
    values = json.loads(listed)
    del values["files"][path.name]
    try:
        for harm in (path.unlink, lambda: manifest.write_text(json.dumps(values))):
            harm()
            packs.check_pack.cache_clear()
            with pytest.raises(PackError, match=path.name):
                SHARED_MODELS[name]()
            path.write_bytes(whole)
    finally:
        path.write_bytes(whole)
        manifest.write_text(listed)


def test_commands_check_the_pack_too(copy: Path, tmp_path: Path) -> None:
    path = copy / "V100/kernels/copy/family.json"
    whole = path.read_bytes()
    (tmp_path / "calls.parquet").touch()
    try:
        path.write_bytes(whole.replace(b"0", b"1", 1))
        with pytest.raises(PackError, match="damaged"):
            predict_command("V100", None, _calls(tmp_path), tmp_path / "out.parquet")
        packs.check_pack.cache_clear()
        with pytest.raises(PackError, match="damaged"):
            overhead_model(
                load_host("v100-traces"), ask(["gpu=V100"]).overheads, None, "dlrm_default"
            )
    finally:
        path.write_bytes(whole)


def _calls(folder: Path) -> Path:
    import pandas as pd

    pd.DataFrame({"op": ["linear"], "B": [1], "M": [64], "N": [64], "K": [64]}).to_parquet(
        folder / "calls.parquet"
    )
    return folder / "calls.parquet"


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


UNSAFE_MODULES = {"pickle", "dill", "cloudpickle", "shelve", "marshal"}
UNSAFE_CALLS = {
    ("torch", "load"),
    ("joblib", "load"),
    ("pd", "read_pickle"),
    ("yaml", "unsafe_load"),
    ("yaml", "full_load"),
}


def unsafe(text: str) -> list[str]:
    """Imports and calls with which reading a file may run code."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [
                alias.name for alias in node.names if alias.name.partition(".")[0] in UNSAFE_MODULES
            ]
        elif (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").partition(".")[0] in UNSAFE_MODULES
        ):
            found.append(str(node.module))
        elif isinstance(node, ast.ImportFrom):
            found += [
                f"{node.module}.{alias.name}"
                for alias in node.names
                if (node.module, alias.name) in UNSAFE_CALLS
            ]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            if (node.func.value.id, node.func.attr) in UNSAFE_CALLS or any(
                each.arg == "allow_pickle" for each in node.keywords
            ):
                found.append(f"{node.func.value.id}.{node.func.attr}")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("eval", "exec")
        ):
            found.append(node.func.id)
    return found


def test_no_module_reads_a_format_that_can_run_code() -> None:
    for path in [*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "workflow").rglob("*.py")]:
        assert not unsafe(path.read_text(encoding="utf-8")), path
    assert unsafe(
        "import pickle\nfrom joblib import load\ntorch.load(x)\nnp.load(x,"
        " allow_pickle=True)\neval(x)\n"
    ) == ["pickle", "joblib.load", "torch.load", "np.load", "eval"]


OWN_PACKS_DIR = {
    "paths", "model_files", "flow", "scripting", "answers/who_answers", "answers/known_answers",
    "commands/listing_commands", "show/grid_inputs", "show/kernel_runs",
}  # fmt: skip
"""Modules that build paths of packs: the first two, and those that list what there is or hash it."""


def test_packs_are_read_through_the_module_that_checks_them() -> None:
    using = set()
    for path in (ROOT / "pipeline").rglob("*.py"):
        names = {
            node.id
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Name)
        }
        if "packs_dir" in names:
            using.add(path.relative_to(ROOT / "pipeline").with_suffix("").as_posix())
    assert using <= OWN_PACKS_DIR

"""Damaged GPU files, workload files, the root configuration, price lists, and overrides."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import yaml

from pipeline.hardware.find_gpu import load_gpu
from pipeline.paths import config_dir
from pipeline.prices import price_list, prices_of
from pipeline.question.question import expand
from soak.damage import VALUES, damaged, strange_json
from soak.verdicts import Case, difference
from soak.workplace import in_project, own_copy, project_copy

GPU, MODEL = "H100", "dlrm_small"


@dataclass(frozen=True)
class Base:
    """What the undamaged files say."""

    gpu: Any
    point: Any
    prices: Any


def prepare(folder: Path) -> Base:
    """The answers of the files that ship."""
    project = project_copy(folder / "project")
    return Base(_gpu(project), _point(project), _prices(config_dir() / "prices.yaml"))


def _gpu(project: Path) -> Any:
    with in_project(project):
        return asdict(load_gpu(GPU)) | {"point": expand([f"gpu={GPU}"])[0].gpu}


def _point(project: Path, *overrides: str) -> Any:
    with in_project(project):
        point = expand([f"model={MODEL}", *overrides])[0]
        return {
            name: point.section(name)
            for name in ("gpu", "model", "kernels", "overheads", "predict")
        }


def _prices(file: Path) -> Any:
    return {"offers": price_list(file), "prices": prices_of(["V100", "A100", "T4", "H100"], file)}


def case(base: Base, folder: Path, rng: Random) -> Case:
    """A damaged file of the configuration."""
    kind = rng.choice(
        (
            _gpu_file,
            _gpu_file,
            _unit,
            _model_file,
            _price_file,
            _price_file,
            _price,
            _override,
            _override,
        )
    )
    return kind(base, folder, rng)


def _written(path: Path, values: Any, rng: Random) -> None:
    path.write_text(
        yaml.safe_dump(
            values,
            sort_keys=rng.random() < 0.5,
            default_flow_style=rng.choice((None, True, False)),
            allow_unicode=rng.random() < 0.5,
        ),
        "utf-8",
    )


def _harm(path: Path, rng: Random, refuse: dict[str, Any]) -> tuple[str, str]:
    """Damage a YAML file. Returns what was done, and `same`, `refuse` or `either`."""
    text = path.read_text("utf-8")
    values = yaml.safe_load(text)
    kind = rng.choice(
        ("same", "same", "bytes", "values", "values", "unknown key", "twice", "not yaml", "gone")
    )
    if kind == "same":
        _written(path, values, rng)
        return "same", "same"
    if kind == "bytes":
        kind, content = damaged(text.encode(), rng)
        path.write_bytes(content)
    elif kind == "values":
        kind, changed = strange_json(values, rng)
        _written(path, changed, rng)
    elif kind == "unknown key":
        key = rng.choice(("nmae", "per_huor", "dram_tb_per_s", "note", "", "sms "))
        _written(path, {**values, key: rng.choice((1, "x", None))}, rng)
        return f"unknown key {key!r}", refuse["unknown key"]
    elif kind == "twice":
        key = rng.choice([key for key in values if not isinstance(values[key], (list, dict))])
        path.write_text(f"{text}\n{key}: {values[key]}\n", "utf-8")
        return f"{key} twice", "refuse"
    elif kind == "not yaml":
        path.write_bytes(
            rng.choice(
                (
                    b"",
                    b"{",
                    b"- a\n- b\n",
                    b"just text",
                    b"\x00",
                    b"\xff\xfe",
                    b"a: &a [*a]",
                    b"!!python/object/apply:os.system [id]",
                    b"a: b: c",
                    b"\t- x",
                    BILLION_LAUGHS,
                    b"? {a: 1}\n: 2\n",
                    b"null",
                    b"3",
                )
            )
        )
        return "not yaml", "refuse"
    else:
        path.unlink()
        if rng.random() < 0.5:
            path.mkdir()
        return "gone", "either"
    return kind, "either"


BILLION_LAUGHS = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 9)
)
"""A small YAML text that names 400 million values."""


def _gpu_file(base: Base, folder: Path, rng: Random) -> Case:
    project = project_copy(folder / "project")
    path = own_copy(project, "config/gpu") / f"{GPU}.yaml"
    kind, must = _harm(path, rng, {"unknown key": "refuse"})
    what: dict[str, Any] = {
        "refuse": {"must": "refuse"},
        "same": {"must": "accept", "truth": base.gpu},
    }.get(must, {})
    return Case(
        f"gpu file: {kind}", partial(_gpu, project), named=(str(path), GPU, path.name), **what
    )


UNITS = {
    "dram_gb_per_s": (1e-3, 1e3, 1e9), "fp32_tflop_per_s": (1e-3, 1e3),
    "fp16_tflop_per_s": (1e-3, 1e3), "tf32_tflop_per_s": (1e-3, 1e3),
    "bf16_tflop_per_s": (1e-3, 1e3), "memory_gib": (1e3, 1e-3, 2**30),
    "l2_mib": (1024, 2**20, 1 / 1024), "boost_clock_mhz": (1e-3, 1e3, 1e6),
    "base_clock_mhz": (1e-3, 1e6), "nvlink_bidirectional_gb_per_s": (1e-3, 1e3),
    "tdp_w": (1e-3, 1e3), "sms": (1e3, 64), "compute_capability": (10,), "pcie_generation": (8,),
}  # fmt: skip
"""Factors of wrong units by key: tera for giga, bits for bytes, and the like."""


def _unit(base: Base, folder: Path, rng: Random) -> Case:
    project = project_copy(folder / "project")
    path = own_copy(project, "config/gpu") / f"{GPU}.yaml"
    values = yaml.safe_load(path.read_text("utf-8"))
    key = rng.choice(sorted(UNITS))
    values[key] *= (factor := rng.choice(UNITS[key]))
    _written(path, values, rng)
    return Case(
        f"unit: {key} x {factor:g}",
        partial(_gpu, project),
        must="refuse",
        named=(key, "architecture"),
    )


def _model_file(base: Base, folder: Path, rng: Random) -> Case:
    project = project_copy(folder / "project")
    name = rng.choice(
        (
            f"config/model/{MODEL}.yaml",
            "config/kernels/auto.yaml",
            "config/overheads/shared.yaml",
            "config/config.yaml",
        )
    )
    if name.count("/") == 1:
        own_copy(project, "config")
        (project / "config").mkdir(exist_ok=True)
    else:
        own_copy(project, name.rpartition("/")[0])
    path = project / name
    kind, must = _harm(path, rng, {"unknown key": "either"})
    what: dict[str, Any] = {
        "refuse": {"must": "refuse"},
        "same": {"must": "accept", "truth": base.point},
    }.get(must, {})
    return Case(f"{path.stem}: {kind}", partial(_point, project), **what)


def _price_file(base: Base, folder: Path, rng: Random) -> Case:
    path = folder / "prices.yaml"
    path.write_bytes((config_dir() / "prices.yaml").read_bytes())
    kind, must = _harm(path, rng, {"unknown key": "refuse"})
    if must == "either":
        must = {"gone": "refuse"}.get(kind, must)
    what: dict[str, Any] = {
        "refuse": {"must": "refuse"},
        "same": {"must": "accept", "truth": base.prices},
    }.get(must, {})
    return Case(f"prices: {kind}", partial(_prices, path), named=(str(path),), **what)


def _price(base: Base, folder: Path, rng: Random) -> Case:
    """A price list with one entry that is no price."""
    path = folder / "prices.yaml"
    values = yaml.safe_load((config_dir() / "prices.yaml").read_text("utf-8"))
    entry = rng.choice(values["prices"])
    harm = rng.choice(
        ("currency", "per_hour", "date", "source", "gpu", "scope", "stands_for", "same offer")
    )
    if harm == "currency":
        values["currency"] = rng.choice((None, "", 5, [], {"USD": 1}, True))
    elif harm == "same offer":
        values["prices"].append(copy.deepcopy(entry))
    elif harm in ("date", "source", "gpu") and rng.random() < 0.4:
        del entry[harm]
    else:
        entry[harm] = rng.choice(BAD[harm])
    _written(path, values, rng)
    return Case(
        f"price: {harm}={entry.get(harm)!r}"[:60],
        partial(_prices, path),
        must="refuse",
        named=(str(path),),
    )


BAD: dict[str, tuple[Any, ...]] = {
    "per_hour": (
        None,
        "",
        "1,50",
        "$2",
        -1,
        0,
        float("nan"),
        float("inf"),
        True,
        [1],
        {"usd": 1},
        "free",
        "1e400",
    ),
    "date": ("2021", "9.9.2021", "2999-01-01", 20210909, None, True, [], "2021-13-01"),
    "source": (None, ""),
    "gpu": ("V1000", None, "", [], 5, True, {"a": 1}),
    "scope": ("node", 5, [], True),
    "stands_for": ("V100", 5, True, ["V1000"], {"a": 1}, [None]),
}


KEYS = (
    "batch_size", "gpu", "model", "kernels", "overheads", "model.dim", "model.tables", "model.rows",
    "model.lookups", "model.dtype", "model.bottom_mlp", "model.top_mlp", "model.optimizer",
    "model.foreach", "model.distribution", "predict.draws", "predict.seed", "predict.cuda_graph",
    "predict.critical_path", "overheads.host_scale", "edit.remove", "edit.substitute",
    "gpu.sms", "gpu.dram_gb_per_s", "gpu.boost_clock_mhz", "gpu.memory_gib", "gpu.pcie_lanes",
    "gpu.name", "kernels.seed", "collect.step_seconds", "model", "model.name", "gpu.sources",
    "model.bottom_mlp[0]", "hydra.run.dir", "results", "experiment", "model.loss",
)  # fmt: skip
TEXTS = (
    "", "0", "-1", "1.5", "nan", "inf", "1e999", "true", "null", "[]", "{}", "[1,2", "a,b", "a b",
    "'", '"', "${gpu.sms}", "${oc.env:HOME}", "${model.dim}", "../x", "\x00", "\n", "µ",
    "999999999999999999999", "1,2,3", "range(1,5)", "glob(*)", "choice(1,2)", "interval(0,1)",
    "[512,0]", "{a:1}", "0x10", "1_000", "+5", "64.0", "TRUE", "512MB", "sort(3,1)",
    "shuffle(range(3))", "glob([)", "!!int", "a=b", "=", "\\", "~", "@x", "\u202e", "x" * 3000,
    "[" * 200, "(" * 200, "1" * 5000,
)  # fmt: skip


def _override(base: Base, folder: Path, rng: Random) -> Case:
    """Overrides with keys and values at random: refused, or numbers in the settings are finite."""
    project = project_copy(folder / "project")
    key = rng.choice(KEYS) if rng.random() < 0.9 else str(rng.choice(VALUES))
    text = (
        rng.choice(("", "", "", "+", "++", "~"))
        + key
        + rng.choice(("=", "=", "=", "=", "", "==", ":"))
        + rng.choice(TEXTS)
    )
    extra = (
        [f"batch_size={rng.choice((1, 64, 4096))}"]
        if "batch_size" not in key and rng.random() < 0.5
        else []
    )
    return Case(f"override {text}", partial(_point, project, text, *extra), truth=_finite)


def _finite(found: Any, _: list[str]) -> str:
    numbers: Callable[[Any], list[float]] = lambda value: (  # noqa: E731
        [each for inner in value.values() for each in numbers(inner)]
        if isinstance(value, dict)
        else [each for inner in value for each in numbers(inner)]
        if isinstance(value, (list, tuple))
        else [value]
        if isinstance(value, float)
        else []
    )
    wrong = [each for each in numbers(found) if each != each or abs(each) == float("inf")]
    return f"settings hold {wrong}" if wrong else difference(sorted(found), sorted(found))

"""A trained model as one safetensors file: its arrays, with everything else as JSON in the metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.errors import PackError
from pipeline.schemas import atomic_path

T = TypeVar("T")

Parameters = Mapping[str, npt.NDArray[np.float32]]


def write_model(path: Path, kind: str, parameters: Parameters, facts: Mapping[str, Any]) -> None:
    """Write a model of a kind, atomically."""
    from safetensors.numpy import save

    arrays = {key: np.ascontiguousarray(value) for key, value in parameters.items()}
    with atomic_path(path) as part:
        part.write_bytes(save(arrays, metadata={kind: json.dumps(facts, sort_keys=True)}))


def read_model(path: Path, kind: str, build: Callable[[dict[str, Any], Parameters], T]) -> T:
    """What `build` makes of a model's facts and arrays.

    Raises:
        PackError: the file is missing or damaged, or holds another kind.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            facts = json.loads(file.metadata()[kind])
            parameters = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        return build(facts, parameters)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise PackError(f"{path}: holds no {kind} model ({error}); rebuild with `make packs`") from None

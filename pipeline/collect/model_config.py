"""Read model configurations (`config/model/*.yaml`), also on a machine without PyYAML.

The files are flat: `key: value` with numbers, words and lists in brackets. The parser here reads only this format, so
that a campaign needs only torch, numpy, pandas and pyarrow.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.paths import config_dir

_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False, "???": "???"}
"""Values of words; `???` marks a value that must be given, as in Hydra."""


def load_model(name: str) -> dict[str, Any]:
    """The configuration of a model.

    Raises:
        UnknownNameError: the model does not exist; the message lists the names.
        ConfigError: the file is not flat YAML.
    """
    folder = config_dir() / "model"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise UnknownNameError("model", name, [file.stem for file in folder.glob("*.yaml")])
    try:
        import yaml
    except ImportError:
        return parse(path.read_text(), path)
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def parse(text: str, where: Path | str = "config") -> dict[str, Any]:
    """Parse flat YAML: keys, scalars, lists and empty maps in brackets, comments; lists may span several lines.

    Raises:
        ConfigError: a line is neither a comment nor `key: value`.
    """
    plain = "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines())
    joined = re.sub(r"\[[^\]]*\]", lambda found: " ".join(found.group().split()), plain)
    result: dict[str, Any] = {}
    for line in filter(None, map(str.rstrip, joined.splitlines())):
        match = re.fullmatch(r"(\w+):\s*(.*)", line)
        if match is None:
            raise ConfigError(f"{where}: cannot read {line!r} without PyYAML; install PyYAML")
        result[match.group(1)] = _value(match.group(2))
    return result


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?", text):
        return float(text) if re.search(r"[.eE]", text) else int(text)
    if text.startswith("[") and text.endswith("]"):
        return [_value(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    if text == "{}":
        return {}
    return json.loads(text) if text.startswith('"') else text.strip("'")

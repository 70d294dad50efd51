"""Proves that a step does the same at every batch size: it runs once with a batch size that is a symbol.

PyTorch's symbolic shapes note each decision that depends on the symbol, such as a comparison of two sizes, as a guard. A
step without guards runs the same operators at each batch size of 2 or more. A batch of one is never covered, because
PyTorch's symbols stand for at least 2.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from pipeline.as_on_cuda.emulation import run_as_on_cuda
from pipeline.as_on_cuda.patches import replaced
from pipeline.workloads import builder

HINT = 1009
"""Batch size that the symbol stands for where a decision needs a number: a prime that is no size of a known model."""

EQUAL_LAYERS = 2
"""Layers that are run: every layer gets tensors of the sizes that the layer before it got."""


def same_at_any_batch(config: Mapping[str, Any]) -> bool:
    """Whether a step is proven to run the same operators at each batch size of 2 or more.

    Args:
        config: content of `config/model/<name>.yaml` after overrides, of a workload that runs on the meta device.

    Returns:
        False also if the step cannot run with a symbol: then nothing is known.
    """
    layers = {"layers": min(int(config["layers"]), EQUAL_LAYERS)} if "layers" in config else {}
    try:
        with warnings.catch_warnings(action="ignore"):
            return not _decisions({**config, **layers})
    except Exception:  # whatever an operator that takes no symbols raises
        return False


def _decisions(config: Mapping[str, Any]) -> list[str]:
    """What a step decides by its batch size, as PyTorch writes it."""
    import torch
    import torch.nn.functional as F
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from pipeline.as_on_cuda.torch_names import constant_pad, fake_tensor_mode, symbolic_size

    def pad(x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
        if mode != "constant":
            raise NotImplementedError(mode)
        return constant_pad(x, pad, value or 0)

    sizes = ShapeEnv(duck_shape=False, specialize_zero_one=True)
    symbol, batch_size = symbolic_size(sizes, "batch_size", HINT)
    build = builder(str(config["architecture"]))
    with fake_tensor_mode(shape_env=sizes, allow_non_fake_inputs=True), replaced(F, pad=pad):
        step = build(config, batch_size, "meta")
        with run_as_on_cuda():
            step.run(0)
    values = sizes.var_to_range[symbol]
    narrowed = [] if values.lower == 2 and values.upper > torch.iinfo(torch.int64).max - 1 else [str(values)]
    return narrowed + [str(guard.expr) for guard in sizes.guards] + [str(one) for one in sizes.replacements]

"""The memory need of a training step whose layers are equal, from the same step with one and with two layers.

The second layer, and each one after it, gets tensors of the sizes that the layer before it got. So each adds the same
bytes to the parameters, gradients and states, and to what autograd saves until the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pipeline.errors import ConfigError
from pipeline.graph.capture import SIZE_ERRORS
from pipeline.graph.cuda_emulation import run_as_on_cuda
from pipeline.graph.table import Graph, Memory
from pipeline.workloads import make_step


def memory_by_layers(config: Mapping[str, Any], batch_size: int, known: Graph) -> Memory | None:
    """The memory need of a step at another batch size, without a capture of all its layers.

    Args:
        config: content of `config/model/<name>.yaml` after overrides, of a shipped workload that runs on the meta device.
        batch_size: samples per step.
        known: the captured graph of the same step at any batch size.

    Returns:
        None if the step has no equal layers, or if they do not give the memory need of the known graph.
    """
    if config.get("mode", "train") != "train" or int(config.get("layers", 0)) < 3:
        return None
    try:
        if _extended(config, known.batch_size) != known.memory:
            return None
        return _extended(config, batch_size)
    except (ConfigError, *SIZE_ERRORS):  # a capture of the whole step explains the error
        return None


def _extended(config: Mapping[str, Any], batch_size: int) -> Memory:
    """The memory need of a step by that with one layer and what the second layer adds."""
    one, two = (asdict(_memory({**config, "layers": layers}, batch_size)) for layers in (1, 2))
    more = int(config["layers"]) - 1
    return Memory(**{part: one[part] + more * (two[part] - one[part]) for part in one})


def _memory(config: Mapping[str, Any], batch_size: int) -> Memory:
    """The memory need of a training step, which runs once."""
    from pipeline.graph.peak_memory import saved_activations
    from pipeline.workloads.compiler_unloaded import compiler_unloaded

    with compiler_unloaded():
        step = make_step(config, batch_size, "meta")
        with run_as_on_cuda(compiles=False), saved_activations(step) as saved:
            step.run(0)
    return Memory(
        step.parameters_bytes + step.buffers_bytes,
        step.gradient_bytes,
        step.optimizer_bytes,
        saved.bytes,
        step.input_bytes,
    )

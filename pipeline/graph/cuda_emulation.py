"""Stand-ins: operators that replace CUDA-only operators on the meta device, and CUDA's names for them.

A stand-in is a `torch.autograd.Function` around an operator of this project that computes shapes only. Capture gives
its nodes the names that a CUDA run records, so that host overheads measured on CUDA apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from pipeline.graph.table import Node, Tensor

CUDA_NAMES = {
    "CudnnLstmBackward": "CudnnRnnBackward0",
    "CudnnLstm": "aten::lstm",
    "CudnnGruBackward": "CudnnRnnBackward0",
    "CudnnGru": "aten::gru",
    "CudnnTanhBackward": "CudnnRnnBackward0",
    "CudnnTanh": "aten::rnn_tanh",
    "steptime_rnn::rnn_backward": "aten::_cudnn_rnn_backward",
    "steptime_rnn::rnn": "aten::_cudnn_rnn",
    "SteptimeFlashBackward": "ScaledDotProductFlashAttentionBackward0",
    "SteptimeFlash": "aten::scaled_dot_product_attention",
    "SteptimeEfficientBackward": "ScaledDotProductEfficientAttentionBackward0",
    "SteptimeEfficient": "aten::scaled_dot_product_attention",
    "SteptimeRmsBackward": "FusedRmsNormBackward0",
    "SteptimeRms": "aten::rms_norm",
    "steptime_norm::rms_backward": "aten::_fused_rms_norm_backward",
    "steptime_norm::rms": "aten::_fused_rms_norm",
    "steptime_loss::read": "aten::_local_scalar_dense",
    "steptime_attention::flash_backward": "aten::_scaled_dot_product_flash_attention_backward",
    "steptime_attention::flash": "aten::_scaled_dot_product_flash_attention",
    "steptime_attention::efficient_backward": "aten::_scaled_dot_product_efficient_attention_backward",
    "steptime_attention::efficient": "aten::_scaled_dot_product_efficient_attention",
}
"""Name of each stand-in -> name of the CUDA operator or autograd node that it replaces."""

CUDA_PARENTS = {"aten::native_dropout": "aten::dropout", "steptime_loss::read": "aten::item"}
"""Operators and stand-ins -> the parent operator under which a CUDA run records them."""


def name_standins(nodes: Sequence[Node]) -> list[Node]:
    """Give stand-ins CUDA's names, describe recurrent layers, and insert the parents listed in `CUDA_PARENTS`."""
    named: list[Node] = []
    fresh = max((node.node_id for node in nodes), default=0) + 1
    for node in nodes:
        found = replace(node, name=_name(node.name))
        if found.name in ("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"):
            found.attributes["rnn"] = _describe_rnn(found)
        if node.name in CUDA_PARENTS:
            named.append(replace(found, node_id=fresh, name=CUDA_PARENTS[node.name], attributes={}))
            found.parent_id, found.is_top_level = fresh, False
            fresh += 1
        named.append(found)
    return named


@contextmanager
def run_as_on_cuda(compiles: bool = True) -> Iterator[None]:
    """While the body runs, the meta device behaves like CUDA.

    This covers fused dropout, attention and RMS norm, cuDNN's recurrent layers, autocast, and optimizers over lists of
    tensors. Code inside `torch.compile` runs uncompiled, because compiled kernels are not modelled.

    Args:
        compiles: whether the body may use `torch.compile`. Otherwise PyTorch's compiler need not be loaded.
    """
    import torch
    import torch.nn.functional as F

    from pipeline.workloads.attention_layers import fused_where_possible
    from pipeline.workloads.autocast import own_autocast
    from pipeline.workloads.compiled_code import compiled_as_written
    from pipeline.workloads.grad_scaler import own_scaler
    from pipeline.workloads.grouped_products import grouped_products
    from pipeline.workloads.loss_item import assumed_reads
    from pipeline.workloads.own_optimizers import foreach_on_meta, sparse_updates_shown
    from pipeline.workloads.parallel_wrappers import unwrapped
    from pipeline.workloads.quick_shapes import quick_shapes
    from pipeline.workloads.recurrent_layers import cudnn_layers
    from pipeline.workloads.rms_norm import fused_norm
    from pipeline.workloads.whole_sequences import whole_sequences

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(x, p, training)[0] if training and p > 0 else x

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(F, "dropout", dropout))
        for each in (
            fused_where_possible,
            fused_norm,
            cudnn_layers,
            own_autocast,
            own_scaler,
            foreach_on_meta,
            sparse_updates_shown,
            assumed_reads,
            unwrapped,
            compiled_as_written,
            grouped_products,
            quick_shapes,
            whole_sequences,
        ):
            stack.enter_context(each())
        if compiles:
            stack.enter_context(torch.compiler.set_stance("force_eager"))  # loads the compiler
        yield


@contextmanager
def create_as_on_cuda() -> Iterator[None]:
    """While the body runs, objects that a step creates before it runs behave as on a machine with a GPU.

    Autocast contexts and gradient scalers are enabled, and wrappers for several GPUs only hold the wrapped module. Calls
    of `torch.compile` are reported.
    """
    from pipeline.workloads.autocast import own_autocast
    from pipeline.workloads.compiled_code import compiled_as_written
    from pipeline.workloads.grad_scaler import own_scaler
    from pipeline.workloads.parallel_wrappers import unwrapped

    with own_autocast(), own_scaler(), unwrapped(), compiled_as_written():
        yield


def _name(name: str) -> str:
    for stand_in, real in CUDA_NAMES.items():
        if stand_in in name:
            return name.replace(stand_in, real)
    return name


def _describe_rnn(node: Node) -> dict[str, Any]:
    """Read the sizes of a recurrent layer from its stand-in's arguments (`pipeline.workloads.recurrent_layers`)."""
    backward = node.name.endswith("backward")
    x = node.tensor(1 if backward else 0)
    gates, hidden, layers, directions, batch_first = (int(v) for v in node.values[-5:])
    weights: Sequence[Tensor] = node.tensor_list(2 if backward else 1)
    batch, tokens = x.shape[:2] if batch_first else x.shape[1::-1]
    output = weights[1].shape[-1]  # width of the recurrent input: the hidden width, unless the layer projects it
    return {"gates": gates, "hidden": hidden, "layers": layers, "directions": directions, "batch": batch,
            "tokens": tokens, "weight_bytes": sum(w.bytes for w in weights),
            **({"projected": output} if output != hidden else {})}  # fmt: skip

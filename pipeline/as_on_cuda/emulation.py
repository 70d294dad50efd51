"""The contexts in which a step is created and run as on CUDA, and CUDA's names for the stand-ins.

A stand-in is a `torch.autograd.Function` around an operator of this project that computes shapes only. Capture gives
its nodes the names that a CUDA run records, so that host overheads measured on CUDA apply.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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
    "SteptimeSyncNormBackward": "SyncBatchNormBackward",
    "SteptimeSyncNorm": "SyncBatchNorm",
    "steptime_sync::stats": "aten::batch_norm_stats",
    "steptime_sync::gather": "aten::batch_norm_gather_stats_with_counts",
    "steptime_sync::normalise": "aten::batch_norm_elemt",
    "steptime_sync::reduce": "aten::batch_norm_backward_reduce",
    "steptime_sync::spread": "aten::batch_norm_backward_elemt",
    "steptime_boxes::nms": "torchvision::nms",
    "steptime_boxes::roi_align_backward": "torchvision::_roi_align_backward",
    "steptime_boxes::roi_align": "torchvision::roi_align",
    "steptime_loss::read": "aten::_local_scalar_dense",
    "steptime_attention::flash_backward": "aten::_scaled_dot_product_flash_attention_backward",
    "steptime_attention::flash": "aten::_scaled_dot_product_flash_attention",
    "steptime_attention::efficient_backward": (
        "aten::_scaled_dot_product_efficient_attention_backward"
    ),
    "steptime_attention::efficient": "aten::_scaled_dot_product_efficient_attention",
}
"""Name of each stand-in -> name of the CUDA operator or autograd node that it replaces."""

CUDA_PARENTS = {"aten::native_dropout": "aten::dropout", "steptime_loss::read": "aten::item"}
"""Operators and stand-ins -> the parent operator under which a CUDA run records them."""


@contextmanager
def run_as_on_cuda() -> Iterator[None]:
    """While the body runs, the meta device behaves like CUDA.

    This covers fused dropout, attention and RMS norm, cuDNN's recurrent layers, autocast, and optimizers over lists of
    tensors. Code inside `torch.compile` runs uncompiled (`pipeline.graph.compiled_step` has compiled steps).
    """
    import torch

    from pipeline.as_on_cuda import (
        detection,
        fused_operators,
        host_reads,
        mixed_precision,
        optimizers,
        recurrent_layers,
        shape_operators,
        wrappers,
    )

    shape_operators.register_shapes()
    with ExitStack() as stack:
        for context in (
            fused_operators.fused_dropout,
            fused_operators.fused_attention,
            fused_operators.fused_norm,
            fused_operators.grouped_products,
            fused_operators.lengths_on_host,
            fused_operators.weighted_bags,
            recurrent_layers.cudnn_layers,
            mixed_precision.own_autocast,
            mixed_precision.own_scaler,
            optimizers.foreach_on_meta,
            optimizers.sparse_updates_shown,
            host_reads.assumed_reads,
            detection.boxes_as_on_cuda,
            host_reads.whole_sequences,
            wrappers.unwrapped,
        ):
            stack.enter_context(context())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def create_as_on_cuda() -> Iterator[None]:
    """While the body runs, objects that a step creates before it runs behave as on a machine with a GPU.

    Autocast contexts and gradient scalers are enabled, and wrappers for several GPUs only hold the wrapped module.
    """
    from pipeline.as_on_cuda import mixed_precision, wrappers

    with (
        mixed_precision.own_autocast(),
        mixed_precision.own_scaler(),
        wrappers.unwrapped(),
    ):
        yield

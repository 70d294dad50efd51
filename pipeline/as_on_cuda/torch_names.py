"""Every private name of PyTorch that the project uses: what it is for, and in which supported versions it exists.

Other modules import from here, so that a new version of PyTorch needs changes in this module only.
`tests/common/test_private_names.py` checks that no other module uses a private name, and that each of these exists.
Operators (`torch._foreach_add_`, `torch.ops.aten._embedding_bag`) are no private names: traces and the map call them so.
"""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_unflatten as tree_unflatten

NAMES = {
    "torch.utils._python_dispatch.TorchDispatchMode": "sees every operator: the memory of a step",
    "torch.utils._pytree.tree_leaves": "tensors in nested arguments",
    "torch.utils._pytree.tree_flatten": "the tensors of a batch in any nesting",
    "torch.utils._pytree.tree_map": "casts of the tensors of nested arguments",
    "torch.utils._pytree.tree_unflatten": "the batch in the form in which the user gave it",
    "torch._subclasses.fake_tensor.FakeTensorMode": "steps with sparse gradients; symbolic sizes",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "which devices implement an operator",
    "torch._C._is_any_autocast_enabled": "recomputation asks whether autocast is on",
    "torch._C._nn": "functions that autocast casts",
    "torch._C._linalg": "functions that autocast casts",
    "torch._VF": "recurrent layers call their functions there",
    "torch._VF._pack_padded_sequence": "lengths of packed sequences, which are read on the host",
    "torch._log_softmax": "the loss of NVIDIA's GNMT, which casts within its kernel",
    "torch._refs.constant_pad_nd": "`F.pad` for symbolic sizes",
    "torch._dynamo.source.ConstantSource": "the name of a symbolic batch size",
    "torch._meta_registrations._meta_grouped_mm_common": "grouped products in every dtype",
    "torch._meta_registrations.device_hint": "shapes as on CUDA of fake CPU tensors",
    "torch.fx.experimental._config.meta_nonzero_assume_all_nonzero": "selections by masks",
    "torch._dynamo.eval_frame": "calls of compiled code",
    "torch.utils._foreach_utils._get_foreach_kernels_supported_devices": "lists of tensors",
    "torch.utils._foreach_utils._get_fused_kernels_supported_devices": "fused optimizers",
    "torch.optim.adam._get_capturable_supported_devices": "counters on the meta device",
    "torch.amp.GradScaler._maybe_opt_step": "the host reads whether gradients are finite",
    "torch._C._current_graph_task_id": "whether a backward pass runs",
    "torch.autograd.Variable._execution_engine": "calls at the end of a backward pass",
    "torch.nn.parallel.DistributedDataParallel._check_comm_hook": "hooks with annotations as text",
    "torch.cuda._sleep": "a kernel that waits: measurements fill the queue with it",
    "torch.UntypedStorage._cdata": "identity of a tensor's memory",
    "torch.distributed.device_mesh._get_device_handle": "streams and events of meshes and FSDP2",
    "torch.distributed.fsdp._fully_shard._fsdp_init._get_device_from_mesh": "FSDP2's device",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group."
    "FSDPParamGroup._validate_no_meta_params": "FSDP2 refuses weights without data",
    "torch.distributed._functional_collectives": "collectives of tensors that ranks share",
    "torch.distributed._functional_collectives._maybe_wrap_tensor": "their results wait",
    "torch.distributed._composable_state._module_state_mapping": "modules that FSDP2 has sharded",
}
"""Private names, with what each is used for."""

COMPILER = {
    "torch._C._ensureCUDADeviceGuardSet": "lets tensors say that they are on a GPU",
    "torch._C._select_conv_backend": "the library of a convolution",
    "torch._C._conv_determine_backend_memory_format": "the layout of a convolution",
    "torch._C._ConvBackend": "names of libraries of convolutions",
    "torch._C._ExcludeDispatchKeyGuard": "an operator without autocast",
    "torch._C._dispatch_get_all_op_names": "operators that autocast casts",
    "torch._dynamo.backends.distributed.DDPOptimizer": "splits a model by DDP's buckets",
    "torch._dynamo.config": "sizes are numbers",
    "torch._dynamo.device_interface.CudaInterface": "what the compiler asks a GPU",
    "torch._dynamo.device_interface.device_interfaces": "of which devices it can ask",
    "torch._dynamo.device_interface.get_interface_for_device": "registers the usual devices",
    "torch._dynamo.eval_frame._create_wrapped_callback": "compiles a user's code in another way",
    "torch._dynamo.utils.counters": "graph breaks",
    "torch._functorch.aot_autograd.make_boxed_func": "the form of a compiled function",
    "torch._functorch.config": "no cache of compiled functions",
    "torch._guards.TracingContext": "strides of a forward graph's results",
    "torch._guards.detect_fake_mode": "the mode of a graph's tensors",
    "torch._inductor.compile_fx": "the compiler's stages",
    "torch._inductor.config": "no caches, no threads",
    "torch._inductor.decomposition.select_decomp_table": "operators that it takes apart",
    "torch._inductor.dependencies.MemoryDep": "what a kernel reads and writes",
    "torch._inductor.fx_passes.joint_graph": "rewrites both passes",
    "torch._inductor.fx_passes.pad_mm": "asks the device whether padding pays",
    "torch._inductor.fx_passes.post_grad": "rewrites each pass",
    "torch._inductor.fx_passes.pre_grad": "rewrites what the user wrote",
    "torch._inductor.graph.GraphLowering": "an operator graph as loops",
    "torch._inductor.ir": "the loops",
    "torch._inductor.runtime.hints.DeviceProperties": "figures of the GPU that it remembers",
    "torch._inductor.scheduler": "kernels after fusion",
    "torch.utils._python_dispatch._disable_current_modes": "tensors that are made outside a trace",
    "torch._inductor.scheduler.FusedMixOrderReductions": "a kernel that sums rows and columns",
    "torch._inductor.virtualized.V": "the graph that is lowered",
    "torch._subclasses.fake_tensor.FakeTensor": "a tensor without data on any device",
}
"""Private names of PyTorch's compiler, which change in every version: compiled steps are predicted for `COMPILER_VERSION`."""

COMPILER_VERSION = (2, 13)

NAMES |= COMPILER

LATER = {
    "torch._meta_registrations._meta_grouped_mm_common": (2, 8),
    **dict.fromkeys(COMPILER, COMPILER_VERSION),
}
"""Names that do not exist in all supported versions of PyTorch (from 2.6 on), with the first that has them."""


@cache
def compiler(name: str) -> Any:
    """What has a private name, by the end of this name in `NAMES`: `compiler("compile_fx")`."""
    return pkgutil.resolve_name(next(each for each in NAMES if each.endswith(f".{name}")))


@contextmanager
def fake_tensor_mode(**options: Any) -> Iterator[Any]:
    """While the body runs, operators compute the shapes of CPU tensors, which have no data. The context is their mode.

    If an operator fails, PyTorch also writes a hundred lines about its internals to stderr. They are not written here,
    because the exception says what failed.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    log = logging.getLogger(FakeTensorMode.__module__)
    disabled, log.disabled = log.disabled, True
    try:
        with FakeTensorMode(**options) as mode:
            yield mode
    finally:
        log.disabled = disabled


def meta_shapes() -> Any:
    """The module of PyTorch's shape functions."""
    return import_module("torch._meta_registrations")


def symbolic_size(sizes: Any, name: str, hint: int) -> tuple[Any, Any]:
    """A size that stands for any number of at least 2, in a `ShapeEnv`: its symbol, and the number for shapes."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(name)
    symbol = sizes.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    return symbol, sizes.create_symintnode(symbol, hint=hint, source=source)


def constant_pad(x: Tensor, pad: Sequence[int], value: float) -> Any:
    """`F.pad` by PyTorch's own Python code: its C++ code takes no symbolic sizes."""
    from torch._refs import constant_pad_nd

    return constant_pad_nd(x, list(pad), value)


def has_kernel(schema: str, key: str) -> bool:
    """Whether an operator (`aten::add.Tensor`) has a kernel for a dispatch key; False if there is no such operator."""
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(schema, key))
    except RuntimeError:
        return False


def storage_id(tensor: Tensor | torch.UntypedStorage) -> int:
    """Identity of a tensor's storage, or of a storage; views of one tensor share it."""
    storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else tensor
    return int(storage._cdata)


def call_after_backward(function: Callable[[], None]) -> bool:
    """Call a function at the end of the backward pass that runs, before what is queued after it; False if none runs."""
    if torch._C._current_graph_task_id() < 0:
        return False
    torch.autograd.Variable._execution_engine.queue_callback(function)
    return True


CHECK_OF_HOOKS = "_check_comm_hook"
"""Method of `DistributedDataParallel` that checks a hook's annotations and its device."""


FIRST_EXCHANGES = ("_verify_param_shape_across_processes", "_sync_module_states")
"""Functions with which `DistributedDataParallel` checks and copies the weights of the first rank when it is made."""

MESH_ANSWERS = ("_get_device_handle", "_get_device_from_mesh")
"""Functions that tell meshes and FSDP2 the module of their device (`torch.cuda`), and the device."""

PARTS_OF_FSDP = (
    "torch.distributed.device_mesh",
    *(
        f"torch.distributed.fsdp._fully_shard.{part}"
        for part in ("_fsdp_collectives", "_fsdp_param_group", "_fsdp_state", "_fsdp_init")
    ),
    "torch.distributed.fsdp._fully_shard._fully_shard",
)
"""Modules that import these functions by name."""

META_CHECK = ("FSDPParamGroup", "_validate_no_meta_params")
"""Class of FSDP2 and its method that refuses weights without data."""


FUNCTIONAL_COLLECTIVES = "torch.distributed._functional_collectives"
"""Module of the collectives that return new tensors."""

WRAP_RESULT = "_maybe_wrap_tensor"
"""Its function that makes a result wait for itself where it is used."""


def sharded_modules() -> Any:
    """The modules that FSDP2 has sharded; PyTorch shards no module of them again."""
    return pkgutil.resolve_name("torch.distributed._composable_state._module_state_mapping")


def wait_on_device(cycles: int) -> None:
    """Launch a kernel that waits for a number of clock cycles."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def log_softmax_of_half(logits: Tensor) -> Tensor:
    """The log-softmax of fp16 logits in fp32, as one kernel."""
    return torch._log_softmax(logits, -1, True)


def assumes_all_nonzero() -> bool:
    """Whether the user told PyTorch to assume that `nonzero` finds every element."""
    return bool(
        pkgutil.resolve_name("torch.fx.experimental._config.meta_nonzero_assume_all_nonzero")
    )


NATIVE: Any = torch._C
"""PyTorch's C++ functions, among them `IS_ANY_AUTOCAST_ENABLED`."""

IS_ANY_AUTOCAST_ENABLED = "_is_any_autocast_enabled"

FUNCTIONS_OF_AUTOCAST = (torch._C._nn, vars(torch._C)["_linalg"])
"""Private modules with functions that autocast casts."""

RECURRENT_FUNCTIONS: Any = torch._VF
"""Module in which recurrent layers find `lstm`, `gru` and similar functions."""

PACKING = "_pack_padded_sequence"
"""The one of them that packs sequences, by lengths on the host."""

GROUPED_PRODUCTS = "_meta_grouped_mm_common"
"""Name of PyTorch's shape function for grouped products, which older versions do not have."""

DEVICE_LISTS = ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices")
"""Functions that tell optimizers and gradient clipping which devices have `foreach` and fused kernels."""

DEVICE_LIST_MODULES = tuple(
    import_module(name) for name in ("torch.optim.optimizer", "torch.utils._foreach_utils")
)
"""Modules in which they are looked up."""

CAPTURABLE = "_get_capturable_supported_devices"
"""Function that tells an optimizer which devices may store its counters; each optimizer's module has it."""

SCALER_STEP = "_maybe_opt_step"
"""Method of `GradScaler` that runs the optimizer unless a gradient is infinite."""

"""Networks of the installed timm library as steps of `model=custom`, as timm's `benchmark.py` runs them.

In training it takes SGD with Nesterov momentum (`create_optimizer_v2`, no weight decay), one parameter at a time before
PyTorch 2.0, and no gradient scaler; the backward pass is inside autocast; gradients are filled with zeros before the step.

In inference the published runs had `--fast-norm` and `--reparam`: their tables state the parameters of joined branches, and
only norms in half precision explain the times of networks with many of them (ResNetV2-50x3 with group norm: 1.8 times as long
in fp32; from tuning rows).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.training_step import Step, host_empty


def network_of(name: str, side: int | None, device: str) -> tuple[nn.Module, tuple[int, int, int]]:
    """A network of timm with random weights, and the shape of its images; `side` in pixels replaces its usual one."""
    import timm  # only the benchmark that names this step needs it

    model: Any
    with torch.device(device):
        model = timm.create_model(name, pretrained=False)
        channels, height, width = model.pretrained_cfg["input_size"]
        if side is None or side == height:
            return model, (channels, height, width)
        with suppress(
            TypeError
        ):  # networks of convolutions take images of any size, and have no such argument
            model = timm.create_model(name, pretrained=False, img_size=side)
    return model, (channels, side, side)


def reparameterized(model: nn.Module, name: str, device: str) -> nn.Module:
    """A network whose parallel branches are one, as `benchmark.py --reparam` infers; others are unchanged.

    Values of parameters are needed for it, so the network is made once more, on the host.
    """
    from timm.utils.model import reparameterize_model

    if not any(
        hasattr(part, "fuse") or hasattr(part, "reparameterize") for part in model.modules()
    ):
        return model
    import timm

    joined: nn.Module = reparameterize_model(timm.create_model(name, pretrained=False).eval())
    return joined.to(device)


def make_step(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """The step of `model.options.network`, with images of `model.options.side` pixels and `model.options.fused` attention."""
    layers: Any = import_module("timm.layers")
    options, training = config["options"], config["mode"] == "train"
    layers.set_fused_attn(bool(options.get("fused", True)))
    layers.set_fast_norm(not training)
    model, shape = network_of(options["network"], options.get("side"), device)
    images, labels = host_empty(batch_size, *shape), host_empty(batch_size, dtype=torch.long)
    if not training:
        model = reparameterized(model, options["network"], device)
        return Step([model], [(images,)], model, None, device, config)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False
    )

    def procedure(batch: tuple[Tensor, ...], _: Sequence[torch.optim.Optimizer]) -> None:
        x, y = batch
        optimizer.zero_grad(set_to_none=False)
        with step.autocast():
            output = model(x)
            scores = output[0] if isinstance(output, tuple) else output
            loss: Any = F.cross_entropy(scores, y)
            loss.backward()
        optimizer.step()

    step = Step(
        [model],
        [(images, labels)],
        lambda x, y: model(x),
        None,
        device,
        config,
        procedure=procedure,
    )
    return step

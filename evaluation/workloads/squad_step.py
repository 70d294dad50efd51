"""NVIDIA's fine-tuning of BERT on SQuAD in PyTorch, as a step of `model=custom`: question answering, 384 tokens.

The training loop is the published one (`run_squad.py`):

- Gradients are clipped by their common norm, which the host reads. The host reads the loss at the end of the step.
- In fp32 the optimizer updates one parameter at a time, with unfused operators, and clips each gradient again.
- PyTorch before 2.0 fills gradients with zeros between steps and adds to them.
- In fp16 the model is in half precision, and a fused Adam updates fp32 master weights (apex O2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.as_on_cuda.host_reads import read
from pipeline.workloads.attention_operators import initialise
from pipeline.workloads.bert import Bert
from pipeline.workloads.training_step import Batch, Step, host_empty, phase

TOKENS, POSITIONS = 384, 512

SIZES = {"bert_base": (768, 12, 12), "bert_large": (1024, 24, 16)}
"""Width, number of layers and number of heads of each model."""

VOCABULARY, CLIP, RATE, DECAY, SCALE = 30528, 1.0, 5e-5, 0.01, 512.0


class Answers(nn.Module):
    """BERT that finds the first and the last word of an answer."""

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.bert, self.out = bert, nn.Linear(bert.token.embedding_dim, 2)
        initialise(self)

    def forward(self, ids: Tensor, kinds: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens, kinds (B, T) and mask (B, 1, 1, T) -> logits of each word as the first, and as the last (B, T)."""
        first, last = self.out(self.bert(ids, kinds, mask)).split(1, 2)
        return first.squeeze(2).contiguous(), last.squeeze(2).contiguous()


class MasterWeights(nn.Module):
    """fp32 copies of the parameters of a model in half precision; the optimizer updates them (apex O2)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.copies = nn.ParameterList(
            [nn.Parameter(p.detach().float()) for p in model.parameters()]
        )


class PlainAdam:
    """Adam without bias correction, unfused (`BertAdam`). Weight decay applies to weights, not to biases and norms."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        first: float = 0.9,
        second: float = 0.999,
        small: float = 1e-6,
    ) -> None:
        self.parameters, self.first, self.second, self.small = (
            list(parameters),
            first,
            second,
            small,
        )
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter that has a gradient."""
        for parameter, (mean, square) in zip(self.parameters, self.moments, strict=True):
            if parameter.grad is None:
                continue
            nn.utils.clip_grad_norm_(parameter, CLIP, foreach=False)
            grad = parameter.grad
            mean.mul_(self.first).add_(grad, alpha=1.0 - self.first)
            square.mul_(self.second).addcmul_(grad, grad, value=1.0 - self.second)
            update = mean / (square.sqrt() + self.small)
            if parameter.dim() > 1:
                update += DECAY * parameter
            parameter.add_(-(RATE * update))


def make_step(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """The step; `model.options.size` is one of `SIZES`, `model.options.zero` says whether gradients are filled with zeros."""
    width, layers, heads = SIZES[config["options"]["size"]]
    half, zero = config["dtype"] == "fp16", bool(config["options"].get("zero", False))
    with torch.device(device):
        model = Answers(Bert(width, layers, heads, VOCABULARY, POSITIONS, fused=False))
        masters = MasterWeights(model) if half else None
    if half:
        model.half()
    ids, kinds, mask = (host_empty(batch_size, TOKENS, dtype=torch.long) for _ in range(3))
    first, last = (host_empty(batch_size, dtype=torch.long) for _ in range(2))
    own: list[Tensor] = list(model.parameters())
    optimizer = (
        PlainAdam(own) if masters is None else torch.optim.Adam(masters.copies, RATE, fused=True)
    )

    def forward(*batch: Tensor) -> tuple[Tensor, Tensor]:
        seen = (1.0 - batch[2][:, None, None, :].to(own[0].dtype)) * -10000.0
        starts, ends = model(batch[0], batch[1], seen)
        return starts, ends

    def procedure(batch: Batch, _: Sequence[torch.optim.Optimizer]) -> None:
        with phase("forward"):
            logits = forward(*batch)
        with phase("loss"):
            ends = [
                nn.functional.cross_entropy(found, end.clamp_(0, TOKENS), ignore_index=TOKENS)
                for found, end in zip(logits, batch[3:], strict=True)
            ]
            loss = (ends[0] + ends[1]) / 2
        with phase("backward"):
            (loss.float() * SCALE if half else loss).backward()  # type: ignore[no-untyped-call]
        with phase("optimizer"):
            updated: list[Tensor] = own
            if masters is not None:
                updated = unscaled(masters, own)
            clip(updated)
            optimizer.step()
            if masters is not None:
                with torch.no_grad():
                    torch._foreach_copy_(own, updated)
        with phase("zero_grad"):
            for parameter in own:
                if zero and parameter.grad is not None:
                    parameter.grad.zero_()
                elif not zero:
                    parameter.grad = None
        with phase("loss"):
            read(loss)

    modules = [model] if masters is None else [model, masters]
    return Step(
        modules,
        [(ids, kinds, mask, first, last)],
        forward,
        None,
        device,
        config,
        procedure=procedure,
    )


def unscaled(masters: MasterWeights, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The master weights, with the gradients of the model. The host reads whether a gradient has overflowed."""
    pairs = [
        (copy, p.grad)
        for copy, p in zip(masters.copies, parameters, strict=True)
        if p.grad is not None
    ]
    grads = [torch.empty_like(copy) for copy, _ in pairs]
    torch._foreach_copy_(grads, [grad for _, grad in pairs])
    for (copy, _), grad in zip(pairs, grads, strict=True):
        copy.grad = grad
    read(grads[0].flatten()[:1])
    return list(masters.copies)


def clip(parameters: Sequence[Tensor]) -> None:
    """Scale all gradients by one factor. The host computes it from their common norm."""
    grads = [p.grad for p in parameters if p.grad is not None]
    read(torch.stack(torch._foreach_norm(grads)).norm())
    torch._foreach_mul_(grads, 0.5)

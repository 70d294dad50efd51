"""Loss and gradient of a network on a batch, written out by hand (needs torch).

The networks of kernel models are so small that torch's automatic gradients spend much of a step on their bookkeeping and
on new memory. Here all intermediate values keep their place in memory from step to step, and all parameters are parts of
one tensor, which the optimizer updates at once. A training step takes 68 to 83 % of the time
(`benchmarks/kernels/training_steps.py`), and the gradients are the same (`tests/kernels/test_backpropagation.py`).

In names, `d_` stands for the derivative of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.kernels.networks import Recipe

TURN = 2.0 * math.pi


@dataclass(frozen=True)
class Parameters:
    """Parameters of a network, or the derivatives of the loss by them.

    Attributes:
        flat: all of them, shape (parameters,). The others are views of it.
        embedding: frequencies, weights and biases of `networks.Periodic`; empty if there is none.
        weights: of each layer, shape (inputs, outputs).
        biases: of each layer, shape (outputs,).
    """

    flat: Tensor
    embedding: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]

    @classmethod
    def copy_of(cls, embedding: Sequence[Tensor], layers: Sequence[Tensor]) -> Parameters:
        """Copies of an embedding's parameters, and of each layer's weights and biases."""
        parts = [*embedding, *layers]
        return cls._of(torch.cat([part.flatten() for part in parts]), [part.shape for part in parts], len(embedding))

    def zeros(self) -> Parameters:
        """Zeros of the same shapes."""
        layers = [part for layer in zip(self.weights, self.biases, strict=True) for part in layer]
        shapes = [part.shape for part in (*self.embedding, *layers)]
        return self._of(torch.zeros_like(self.flat), shapes, len(self.embedding))

    @classmethod
    def _of(cls, flat: Tensor, shapes: Sequence[torch.Size], embedded: int) -> Parameters:
        parts = torch.split(flat, [shape.numel() for shape in shapes])
        views = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        layers = views[embedded:]
        return cls(flat, tuple(views[:embedded]), tuple(layers[::2]), tuple(layers[1::2]))


class Backpropagation:
    """Computes the loss of batches of one size, and its gradient.

    Args:
        parameters: the network's parameters; they may change between calls.
        recipe: batch size, loss, residuals and activation.
        x: standardised inputs of all samples, shape (samples, columns).
        y: targets, shape (samples,), or odds, shape (samples, choices).

    Attributes:
        gradient: derivatives of the loss of the last batch.
    """

    def __init__(self, parameters: Parameters, recipe: Recipe, x: Tensor, y: Tensor) -> None:
        self.parameters, self.recipe, self.x, self.y = parameters, recipe, x, y
        self.gradient = parameters.zeros()
        batch, layers = min(recipe.batch, len(x)), len(parameters.weights) - 1
        self._inputs = x.new_empty(batch, x.shape[1])
        self._embedding = _Embedding(parameters, self.gradient, self._inputs) if parameters.embedding else None
        width, outputs = parameters.weights[-1].shape
        self._sums, self._hidden = x.new_empty(layers, batch, width), x.new_empty(layers, batch, width)
        self._d_sum, self._d_hidden = x.new_empty(batch, width), x.new_empty(2, batch, width)
        self._outputs, self._d_outputs = x.new_empty(batch, outputs), x.new_empty(batch, outputs)

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> float:
        """The loss of a batch of samples; `gradient` is set. `rows` are their numbers, shape (batch,)."""
        torch.index_select(self.x, 0, rows, out=self._inputs)
        entering = self._forward()
        loss = self._loss(self.y.index_select(0, rows))
        self._backward(entering)
        return loss

    def _forward(self) -> list[Tensor]:
        """Compute the outputs; return the inputs of each layer, shape (batch, inputs)."""
        weights, biases = self.parameters.weights, self.parameters.biases
        entering = [self._inputs if self._embedding is None else self._embedding.forward()]
        for layer, (sums, hidden) in enumerate(zip(self._sums, self._hidden, strict=True)):
            torch.addmm(biases[layer], entering[-1], weights[layer], out=sums)
            if self.recipe.relu:
                torch.clamp(sums, min=0.0, out=hidden)
            else:
                torch.ops.aten.silu.out(sums, out=hidden)
            if self.recipe.residual and layer > 0:
                hidden += entering[-1]
            entering.append(hidden)
        torch.addmm(biases[-1], entering[-1], weights[-1], out=self._outputs)
        return entering

    def _loss(self, wanted: Tensor) -> float:
        """The loss of the outputs; its derivatives by them are set."""
        batch = len(wanted)
        if self.recipe.loss == "odds":
            log_odds = torch.log_softmax(self._outputs, dim=1)
            torch.sub(log_odds.exp(), wanted, out=self._d_outputs).div_(batch)
            return -(wanted * log_odds).sum().item() / batch
        error = torch.sub(self._outputs[:, 0], wanted, out=self._d_outputs[:, 0])
        if self.recipe.loss == "l1":
            loss = error.abs().mean().item()
            error.sign_().div_(batch)
        else:
            loss = error.square().mean().item()
            error.mul_(2.0 / batch)
        return loss

    def _backward(self, entering: Sequence[Tensor]) -> None:
        weights, (d_hidden, spare) = self.parameters.weights, self._d_hidden
        self._set_gradient(-1, entering[-1], self._d_outputs)
        torch.mm(self._d_outputs, weights[-1].T, out=d_hidden)
        for layer in reversed(range(len(self._sums))):
            if self.recipe.relu:
                torch.ops.aten.threshold_backward.grad_input(d_hidden, self._sums[layer], 0.0, grad_input=self._d_sum)
            else:
                torch.ops.aten.silu_backward.grad_input(d_hidden, self._sums[layer], grad_input=self._d_sum)
            self._set_gradient(layer, entering[layer], self._d_sum)
            if layer > 0:
                torch.addmm(d_hidden, self._d_sum, weights[layer].T, beta=float(self.recipe.residual), out=spare)
                d_hidden, spare = spare, d_hidden
        if self._embedding is not None:
            self._embedding.backward(weights[0], self._d_sum)

    def _set_gradient(self, layer: int, entering: Tensor, d_sums: Tensor) -> None:
        torch.mm(entering.T, d_sums, out=self.gradient.weights[layer])
        torch.sum(d_sums, dim=0, out=self.gradient.biases[layer])


class _Embedding:
    """The periodic embedding of a batch, as in `Periodic.extend`, and its gradient; rows are the last axis."""

    def __init__(self, parameters: Parameters, gradient: Parameters, inputs: Tensor) -> None:
        self.frequency, self.weight, self.bias = parameters.embedding
        self.d_frequency, self.d_weight, self.d_bias = gradient.embedding
        self.inputs = inputs
        (batch, columns), (_, frequencies), (_, units) = inputs.shape, self.frequency.shape, self.bias.shape
        self._extended = inputs.new_empty(columns * (1 + units), batch)
        self._columns = self._extended[:columns]
        self._units = self._extended[columns:].view(columns, units, batch)
        self._d_units = torch.empty_like(self._units)
        self._angle = inputs.new_empty(columns, frequencies, batch)
        self._waves, self._d_waves = inputs.new_empty(2, columns, 2 * frequencies, batch)
        self._cos, self._sin = self._waves.chunk(2, dim=1)
        self._d_cos, self._d_sin = self._d_waves.chunk(2, dim=1)

    def forward(self) -> Tensor:
        """The extended inputs, shape (batch, columns x (1 + units))."""
        self._columns.copy_(self.inputs.T)
        torch.mul((TURN * self.frequency)[:, :, None], self._columns[:, None, :], out=self._angle)
        torch.cos(self._angle, out=self._cos)
        torch.sin(self._angle, out=self._sin)
        torch.baddbmm(self.bias[:, :, None], self.weight.transpose(1, 2), self._waves, out=self._units)
        self._units.clamp_(min=0.0)
        return self._extended.T

    def backward(self, first_layer: Tensor, d_sums: Tensor) -> None:
        """Set the derivatives, from the first layer's weights and the derivatives by its sums, shape (batch, outputs)."""
        columns = len(self._columns)
        torch.mm(first_layer[columns:], d_sums.T, out=self._d_units.view(-1, len(d_sums)))
        torch.ops.aten.threshold_backward.grad_input(self._d_units, self._units, 0.0, grad_input=self._d_units)
        torch.bmm(self._waves, self._d_units.transpose(1, 2), out=self.d_weight)
        torch.sum(self._d_units, dim=2, out=self.d_bias)
        torch.bmm(self.weight, self._d_units, out=self._d_waves)
        self._d_sin *= self._cos
        self._d_cos *= self._sin
        d_angle = torch.sub(self._d_sin, self._d_cos, out=self._angle)
        torch.bmm(d_angle, self._columns[:, :, None], out=self.d_frequency[:, :, None])
        self.d_frequency *= TURN

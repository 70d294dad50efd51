"""Operator graphs of training steps, captured without a GPU, and the device calls of each operator.

capture(config, batch_size) -> Graph          on the meta device: needs no GPU and no tensor memory, takes seconds.
import_execution_trace(path) -> Graph         from PyTorch's execution trace of a real run.
map_calls(graph, gpu, device) -> DataFrame    the device calls of every operator (schema `calls`).
"""

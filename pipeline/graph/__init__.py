"""Operator graphs of training steps, captured without a GPU, and what each operator asks of the device.

capture(config, batch_size) -> Graph          on the meta device: no GPU, no memory, seconds
import_execution_trace(path) -> Graph         from PyTorch's execution trace of a real run
map_calls(graph, gpu, device) -> DataFrame    the device calls of every operator (schema `calls`)
"""

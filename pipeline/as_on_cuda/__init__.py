"""Makes PyTorch on the meta device behave as on CUDA, so that a step is captured without a GPU.

run_as_on_cuda()      context in which a step runs (`emulation`).
create_as_on_cuda()   context in which a user's function creates its step.

`torch_names` holds every private name of PyTorch that the project uses.
"""

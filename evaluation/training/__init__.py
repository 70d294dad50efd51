"""How shipped models are made: training across GPUs, with each GPU left out in turn, and inputs of packs."""

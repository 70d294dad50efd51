"""How good predictions are, and how shipped models are made. It imports `pipeline`; `pipeline` does without it."""

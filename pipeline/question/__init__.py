"""What is asked: GPU, workload, batch size and settings. All names are resolved and all values checked here, once."""

"""What GPUs are: specification files, architecture limits, and the device of this machine."""

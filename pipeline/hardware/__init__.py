"""Figures of GPUs: specification files, architecture limits, and the device of this machine."""

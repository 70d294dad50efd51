"""Sizes of an operator's device calls: one small function per kind of kernel, found by name (`registry.py`)."""

"""How large the device calls of an operator are: one small function per kind of kernel, found by name (`registry.py`)."""

"""Profiler traces and execution traces as linked columns."""

"""Measurements on this machine's device: training steps, traces, kernel microbenchmarks, peaks, and the GPU campaign.

Everything here needs only torch, numpy, pandas and pyarrow, so it runs on a bare GPU machine.
"""

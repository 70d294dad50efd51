"""Measurements on this machine's device: training steps, traces, kernel microbenchmarks, peaks, and the GPU campaign.

Everything here needs torch, numpy, pandas and pyarrow alone, so that it runs on a bare GPU machine.
"""

"""Reads what campaigns measured. Nothing here uses a device: what predicts imports this, and never `pipeline.collect`."""

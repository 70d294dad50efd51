"""Readers of measurements that other people published, and where they come from."""

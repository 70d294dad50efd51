"""Readers of public measurements, and their download with checksums."""

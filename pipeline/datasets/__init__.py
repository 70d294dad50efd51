"""Readers of public measurements, as they lie in a folder of the user's; nothing is downloaded."""

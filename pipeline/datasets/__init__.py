"""Readers of public measurements from a folder of the user or an installed package; nothing is downloaded."""

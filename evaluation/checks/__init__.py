"""Predictions beside measurements that no fit has seen."""

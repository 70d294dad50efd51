"""Predictions compared with measurements that no fit has seen: public traces, published steps, GPUs left out."""

"""Predictions compared with measurements that no fit used: public traces, published steps, held-out GPUs."""

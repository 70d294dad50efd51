"""Kernel models: families, work and features, heuristic and learned models, fitting and prediction."""

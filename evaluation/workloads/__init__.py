"""Training steps of published measurements, rebuilt."""

"""Names of the methods that checks compare, as their tables and figures show them."""

FULL, PUBLISHED_FORM, SHARED = (
    "critical path",
    "Algorithm 1 of Lin et al.",
    "overheads of other hosts",
)
KERNEL_SUM, TRAIN_MEAN = "queued work and kernels", "mean of other iterations"
REPLAY_METHODS = (FULL, SHARED, PUBLISHED_FORM, KERNEL_SUM, TRAIN_MEAN)
"""Methods that predict a span, in the order in which they are shown."""

TRACKER_METHOD = "both"
"""The method that the tracker uses: cross-GPU models, averaged with wave scaling (half each) in matrix products."""

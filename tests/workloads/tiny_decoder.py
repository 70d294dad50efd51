"""Sizes of a decoder layer that one rank computes in a fraction of a second."""

from pipeline.workloads.decoder_operators import Shards
from pipeline.workloads.parallel_decoder import Sizes


def tiny_sizes(shards: Shards) -> Sizes:
    """Sizes of a layer that these shards split."""
    return Sizes(
        llama=False,
        width=32,
        heads=4,
        kv_heads=4,
        ffn_width=64,
        tokens=8,
        vocabulary=128,
        activation="gelu",
        fused=False,
        dropout=0.0,
        checkpointing="none",
        tied=False,
        layers=1,
        part="middle",
        shards=shards,
        context=Shards(),
    )

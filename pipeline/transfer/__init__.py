"""Cross-GPU prediction: wave scaling, learned models, and the tracker (docs/transfer.md)."""

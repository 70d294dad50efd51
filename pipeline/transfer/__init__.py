"""Cross-GPU prediction: wave scaling, learned models, and the tracker (DESIGN section 5)."""

"""Host overheads (T1 to T5): extraction from traces, statistics, sharing."""

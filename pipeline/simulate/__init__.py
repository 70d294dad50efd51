"""The critical path: programs, their simulation, timelines and the replay of traces."""

"""What would change if: pure edits of graphs, to be predicted like any other graph."""

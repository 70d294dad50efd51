"""The project's figures, one function each; every function takes tables and returns a matplotlib figure."""

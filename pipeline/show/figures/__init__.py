"""The project's figures, one function each: a table and the page that it is drawn for in, a matplotlib figure out."""

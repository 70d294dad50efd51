"""Tables of errors: of a grid, of campaigns, of the README and docs/accuracy.md."""

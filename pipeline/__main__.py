"""`python -m pipeline` is the `steptime` command."""

from pipeline.cli import main

main()

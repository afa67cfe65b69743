"""`python -m embershard.cli`: the command line without its script."""

from .main import main

main()

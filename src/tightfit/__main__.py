"""Entry point of `python -m tightfit`."""

from tightfit.cli.app import console_main

console_main()

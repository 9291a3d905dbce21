"""python -m tightfit"""

from tightfit.cli.app import process

process()

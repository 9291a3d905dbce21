"""python -m tightfit"""

from tightfit.cli import process

process()

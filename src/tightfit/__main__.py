"""python -m tightfit"""

from tightfit.cli import main

main()

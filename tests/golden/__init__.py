"""Golden estimates: memory and op counts of many recipes, to prove that a change alters none of them.

`python -m golden` (with tests/ on the path) regenerates them.
"""

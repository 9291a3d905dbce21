"""Golden estimates: bytes and operations of many recipes, to prove that a change alters none of them.

`python -m golden` (with tests/ on the path) writes them anew.
"""

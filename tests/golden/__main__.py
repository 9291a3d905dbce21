"""Regenerates the golden estimates."""

from golden.estimates import write

write()

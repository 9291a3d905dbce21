"""Writes the golden estimates anew."""

from golden.estimates import write

write()

"""Strings of the report in English and Chinese."""

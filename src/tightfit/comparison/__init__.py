"""Comparison: several recipes measured side by side on this machine, each in its own process."""

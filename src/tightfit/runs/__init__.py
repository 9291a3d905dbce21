"""Runs: what a run folder holds."""

"""Simulation: the memory estimate of a training before its first step, without weights."""

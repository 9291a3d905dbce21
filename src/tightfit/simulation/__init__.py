"""Simulation: estimates the memory of a training by running it on fake tensors, without loading weights."""

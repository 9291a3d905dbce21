"""Simulation: estimates the memory of training by running it on fake tensors, without loading weights."""

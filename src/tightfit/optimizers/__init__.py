"""Optimizers: those that torch and transformers have not, or have slower."""

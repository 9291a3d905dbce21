"""Optimizers that torch and transformers do not have, or have in a slower form."""

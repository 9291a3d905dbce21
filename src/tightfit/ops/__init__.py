"""Ops: the torch code that strategies put into a model."""

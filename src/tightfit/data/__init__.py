"""From a file to batches: rows, clean rows, split, tokens, slices."""

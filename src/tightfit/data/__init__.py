"""From a data file to batches: reading, cleaning, splitting, tokenizing, micro-batches."""

"""Training: the Trainer, its checkpoints and recovery, and a run from start to finish."""

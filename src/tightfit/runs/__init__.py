"""Run folders: the record, the header and the checkpoints of a run."""

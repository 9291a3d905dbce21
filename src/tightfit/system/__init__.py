"""The operating system: memory and its limits, files, other processes."""

"""Planning: choose the fastest recipe that fits a memory budget, with reasons."""

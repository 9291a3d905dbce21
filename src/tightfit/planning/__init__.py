"""Planning: choose a recipe that fits a memory budget, with reasons."""

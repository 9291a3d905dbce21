"""Planning: choose a recipe that fits a memory budget, and explain the choice."""

"""Planning: a budget in, the fastest recipe that fits out, with reasons."""

"""Engine: what simulation and training share."""

"""Engine: the code that simulation and training share."""

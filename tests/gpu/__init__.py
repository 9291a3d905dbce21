"""GPU code on fake GPUs, with the CUDA build of torch: `make test-gpu`; `make test` leaves it out."""

"""What gpufleet has promised, rented and still owes, on disk: written before it is acted on, and never forgotten."""

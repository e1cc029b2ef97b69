"""One YAML file to a running vLLM x TileRT prefill/decode service on rented GPUs, and back to zero."""

__version__ = "0.1.0"

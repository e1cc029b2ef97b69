"""A marketplace on disk: prices, stock, delays, faults and a meter of its own; its nodes are real local processes."""

"""Kill the money part of `up`, of `up` after a change, and of `down` at every durable write and provider call."""

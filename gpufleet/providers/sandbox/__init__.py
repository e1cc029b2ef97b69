"""A server on this machine that speaks a provider file: what the file says of answers, turned around."""

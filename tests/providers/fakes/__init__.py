"""Providers as they answer on the wire, for tests: recorded shapes over a small market that moves on when looked at."""

"""Hosts that are already there: leased and released, never created, deleted or powered off."""

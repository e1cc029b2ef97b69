"""Carries plans out: rents, connects, runs jobs on nodes, opens the front door, and takes it all down again."""

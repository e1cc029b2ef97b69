"""Stand-ins for the programs a GPU node has on its PATH."""

"""Public fault reports, reproduced as the provider behaved, with what is required of us; docs/faults.md lists them."""

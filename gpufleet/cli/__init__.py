"""The command line: arguments, output and exit codes; no logic. `gpufleet.cli.main` is the entry point."""

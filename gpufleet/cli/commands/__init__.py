"""One module per command, each with a function `command`; `gpufleet.cli.lazy` imports a module when it runs."""

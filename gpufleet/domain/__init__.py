"""Plain, frozen values that every other room speaks in. No I/O, no third-party imports."""

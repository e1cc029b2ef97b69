"""Providers that a YAML file describes: HTTP requests and answers as JMESPath, `docs/providers.md` says how."""

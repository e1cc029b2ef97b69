"""Launch commands per role, the addresses they use, and readiness and hello probes. Builders are pure."""

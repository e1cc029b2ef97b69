"""Host keys of the mock's nodes."""

from __future__ import annotations

import os
from pathlib import Path


def write_new(path: Path) -> str:
    """Write a fresh ed25519 private key (OpenSSH format, 0600, atomically); returns ``ssh-ed25519 AAAA...``."""
    # cryptography takes tens of milliseconds to import, and only a create needs it.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    draft.replace(path)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()

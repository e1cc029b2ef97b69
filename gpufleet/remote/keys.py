"""The key pair that logs in to a fleet's nodes."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpufleet.errors import GpufleetError

_FILE_NAME = "id_ed25519"


@dataclass(frozen=True)
class KeyPair:
    """An ed25519 key: the private half in a file, the public half as text."""

    private_file: Path
    """OpenSSH format, 0600, no passphrase."""
    public_text: str
    """``ssh-ed25519 AAAA... gpufleet``, as authorized_keys takes it."""


def ensure_keypair(directory: Path) -> KeyPair:
    """The key pair of this directory, made on first use.

    Two runs at once get the same pair: the file appears whole, and the first one wins.

    Raises:
        GpufleetError: the file there is not a private key, or the directory cannot be written.
    """
    path = directory / _FILE_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _write_once(path, _new_private_key())
        return KeyPair(path, _public_text(path.read_bytes()))
    except OSError as error:
        raise GpufleetError(f"the SSH key cannot be made or read: {error.strerror}", where=str(path)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise GpufleetError(
            "this file is not an ed25519 private key without a passphrase",
            where=str(path),
            hint="move it away; a new key cannot log in to nodes that are already rented",
        ) from error


def import_keypair(directory: Path, private_file: Path) -> KeyPair:
    """Make a private key the directory's own; the file stays where it is.

    Raises:
        GpufleetError: it cannot be read, is no ed25519 key, or another key is in use there.
    """
    try:
        content = private_file.expanduser().read_bytes()
        _public_text(content)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise GpufleetError(f"the SSH key cannot be read: {error.strerror}", where=str(private_file)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise GpufleetError(
            "this file is not an ed25519 private key without a passphrase", where=str(private_file)
        ) from error
    path = directory / _FILE_NAME
    _write_once(path, content)
    if path.read_bytes() != content:
        raise GpufleetError("the fleet has another SSH key already", where=str(path), hint=f"move {path} away first")
    return ensure_keypair(directory)


def _new_private_key() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def _write_once(path: Path, content: bytes) -> None:
    """Write a 0600 file unless it is there already; never half of it."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".key-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return
    finally:
        Path(temporary).unlink()


def _public_text(private: bytes) -> str:
    key = serialization.load_ssh_private_key(private, password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise TypeError("not an ed25519 key")
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{public.decode('ascii')} gpufleet"

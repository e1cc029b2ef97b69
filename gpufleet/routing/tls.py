"""The endpoint's certificate: made here, or the user's. One PEM text holds the chain and the key, as HAProxy wants."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpufleet.routing.errors import BadCertificate
from gpufleet.routing.files import write_atomically

_DAYS = 825
"""The longest time that platforms accept for a certificate."""
_ANY = {"0.0.0.0", "::"}  # noqa: S104  (compared, not bound)


def self_signed(host: str, now: datetime) -> str:
    """A new P-256 key and a certificate for ``host``, ``localhost`` and the loopback addresses, valid 825 days.

    Args:
        host: the address that HAProxy listens on; an any-address adds no name.
        now: aware; the certificate is valid from an hour before, since clocks differ.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpufleet endpoint")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode() + _key_pem(key)


def ensure_self_signed(path: Path, host: str, now: datetime | None = None) -> str:
    """The PEM in ``path`` (0600); made when it is missing, within a week of its end, or not for ``host``.

    Raises:
        BadCertificate: the file is there and cannot be read.
    """
    now = now or datetime.now(UTC)
    if path.exists():
        pem = _read(path)
        try:
            leaf = _chain(pem)[0]
            if leaf.not_valid_after_utc > now + timedelta(days=7) and set(_names(host)) <= set(_names_in(leaf)):
                return pem
        except ValueError:
            pass  # half a file of an earlier run: make a new one
    pem = self_signed(host, now)
    write_atomically(path, pem)
    return pem


def read_pem(path: Path) -> str | None:
    """The PEM of an earlier run as it is; None when there is none.

    Raises:
        BadCertificate: the file is there and cannot be read.
    """
    return _read(path) if path.exists() else None


def load_user_certificate(certificate: str, key: str, now: datetime | None = None) -> str:
    """The user's chain and key as one PEM.

    Raises:
        BadCertificate: not PEM, expired, not valid yet, an encrypted key, or a key of another certificate.
    """
    now = now or datetime.now(UTC)
    try:
        leaf = _chain(certificate)[0]
    except ValueError as error:
        raise BadCertificate("router.tls.certificate is not a PEM certificate") from error
    if leaf.not_valid_after_utc <= now:
        raise BadCertificate(f"router.tls.certificate has expired on {leaf.not_valid_after_utc:%Y-%m-%d}")
    if leaf.not_valid_before_utc > now:
        raise BadCertificate(f"router.tls.certificate is not valid before {leaf.not_valid_before_utc:%Y-%m-%d %H:%M}Z")
    try:
        private = serialization.load_pem_private_key(key.encode(), password=None)
    except TypeError:
        raise BadCertificate("router.tls.key is encrypted", hint="openssl pkey -in KEY -out PLAIN_KEY") from None
    except ValueError:
        raise BadCertificate("router.tls.key is not a PEM private key") from None
    if _public(private.public_key()) != _public(leaf.public_key()):
        raise BadCertificate(
            "router.tls.key does not belong to the first certificate in router.tls.certificate",
            hint="the server's own certificate comes first, its issuers after it",
        )
    return f"{certificate.rstrip()}\n{key.rstrip()}\n"


def fingerprint(pem: str) -> str:
    """SHA-256 of the first certificate, ``AA:BB:...``.

    Raises:
        BadCertificate: there is none.
    """
    try:
        der = _chain(pem)[0].public_bytes(serialization.Encoding.DER)
    except ValueError as error:
        raise BadCertificate("not a PEM certificate") from error
    return ":".join(f"{byte:02X}" for byte in sha256(der).digest())


def certificate_only(pem: str) -> str:
    """The first certificate without the key: what a client needs to pin.

    Raises:
        BadCertificate: there is none.
    """
    try:
        return _chain(pem)[0].public_bytes(serialization.Encoding.PEM).decode()
    except ValueError as error:
        raise BadCertificate("not a PEM certificate") from error


def _chain(pem: str) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem.encode())


def _names(host: str) -> list[x509.GeneralName]:
    hosts = dict.fromkeys(["localhost", "127.0.0.1", "::1", *([] if host in _ANY else [host])])
    return [_name(each) for each in hosts]


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _names_in(leaf: x509.Certificate) -> list[x509.GeneralName]:
    try:
        return list(leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


def _public(key: object) -> bytes:
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(encoding, form)  # type: ignore[attr-defined,no-any-return]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise BadCertificate(f"the endpoint's certificate cannot be read: {error}", where=str(path)) from error

"""HAProxy's runtime socket, and the certificate."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from gpufleet.routing.errors import BadCertificate, RouterGone, RouterRefused
from gpufleet.routing.runtime import RuntimeApi, shell_command
from gpufleet.routing.tls import (
    certificate_only,
    ensure_self_signed,
    fingerprint,
    load_user_certificate,
    self_signed,
)
from tests.routing.harness import router, until

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def test_the_socket_tells_who_is_up_busy_and_waited_for() -> None:
    with router(cells=1) as r:
        assert {(s.backend, s.name) for s in r.api.servers()} == {
            ("tilert", "cell-decode-0"),
            ("tilert", "native"),
            ("native", "native"),
        }
        r.cells[0].gate.clear()
        asked = [r.background("one")]
        until(lambda: r.cells[0].running == 1, "the cell is busy")
        asked.append(r.background("two"))
        until(lambda: r.api.queued() == 1, "one waits")
        cell = next(s for s in r.api.servers() if s.name == "cell-decode-0")
        assert (cell.up, cell.active, cell.total) == (True, 1, 1)
        r.api.drain("cell-decode-0")
        assert not r.up()["cell-decode-0"]
        r.api.ready("cell-decode-0")
        assert r.up()["cell-decode-0"]
        assert r.api.queued("no-such-backend") == 0
        assert r.api.info()["Version"].startswith("2.")
        r.cells[0].gate.set()
        assert {a.result().status_code for a in asked} == {200}


def test_draining_a_native_server_takes_it_out_everywhere() -> None:
    with router() as r:
        r.api.drain("native")
        assert {s.status for s in r.api.servers() if s.name == "native"} == {"DRAIN"}
        with pytest.raises(RouterRefused, match="no server cell-decode-7"):
            r.api.drain("cell-decode-7")


def test_the_socket_can_be_asked_through_a_shell() -> None:
    with router() as r:

        def ask(command: str) -> str:
            line = shell_command(str(r.directory), command)
            return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout

        assert [s.name for s in RuntimeApi(ask).servers()] == [s.name for s in r.api.servers()]


def test_a_router_that_is_gone_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(RouterGone, match="does not answer") as caught:
        RuntimeApi(tmp_path / "haproxy.sock").servers()
    assert caught.value.where == str(tmp_path / "haproxy.sock")
    assert "gpufleet up" in (caught.value.hint or "")


def test_a_certificate_is_made_once_and_kept_private(tmp_path: Path) -> None:
    path = tmp_path / "tls" / "endpoint.pem"
    pem = ensure_self_signed(path, "10.0.0.1", NOW)
    assert ensure_self_signed(path, "10.0.0.1", NOW + timedelta(days=300)) == pem
    assert path.stat().st_mode & 0o777 == 0o600
    leaf = x509.load_pem_x509_certificate(pem.encode())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1", "10.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert 824 <= (leaf.not_valid_after_utc - NOW).days <= 825


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "gpu.example.org", "127.0.0.1"])
def test_any_address_can_be_listened_on(tmp_path: Path, host: str) -> None:
    pem = ensure_self_signed(tmp_path / "a.pem", host, NOW)
    assert ensure_self_signed(tmp_path / "a.pem", host, NOW) == pem


def test_a_new_certificate_is_made_near_the_end_for_another_host_and_for_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.pem"
    first = ensure_self_signed(path, "10.0.0.1", NOW)
    assert ensure_self_signed(path, "10.0.0.2", NOW) != first
    second = path.read_text()
    assert ensure_self_signed(path, "10.0.0.2", NOW + timedelta(days=820)) != second
    path.write_text(second[:200])
    assert fingerprint(ensure_self_signed(path, "10.0.0.2", NOW))


def test_the_fingerprint_is_what_openssl_shows(tmp_path: Path) -> None:
    pem = self_signed("127.0.0.1", NOW)
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-fingerprint", "-sha256"], input=pem, capture_output=True, text=True, check=True
    )
    assert fingerprint(pem) == shown.stdout.strip().partition("=")[2]


def test_what_is_pinned_holds_no_key() -> None:
    assert "PRIVATE" not in certificate_only(self_signed("127.0.0.1", NOW))


def make(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, start: datetime, end: datetime) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example.org")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(start).not_valid_after(end)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def pem_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, password: bytes | None = None) -> str:
    protection = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection).decode()


KEY = ec.generate_private_key(ec.SECP256R1())
DAY = timedelta(days=1)


@pytest.mark.parametrize("key", [KEY, rsa.generate_private_key(65537, 2048)], ids=["ec", "rsa"])
def test_the_users_own_certificate(key: ec.EllipticCurvePrivateKey) -> None:
    pem = load_user_certificate(make(key, NOW - DAY, NOW + DAY), pem_of(key), NOW)
    assert pem.count("BEGIN CERTIFICATE") == pem.count("PRIVATE KEY-----\n") - 1 == 1


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        (make(KEY, NOW - DAY, NOW), pem_of(KEY), "has expired on 2026-12-01"),
        (make(KEY, NOW + DAY, NOW + 2 * DAY), pem_of(KEY), "not valid before 2026-12-02"),
        (make(KEY, NOW - DAY, NOW + DAY), pem_of(ec.generate_private_key(ec.SECP256R1())), "does not belong"),
        (make(KEY, NOW - DAY, NOW + DAY), pem_of(KEY, b"x"), "is encrypted"),
        (make(KEY, NOW - DAY, NOW + DAY), "nonsense", "not a PEM private key"),
        ("nonsense", pem_of(KEY), "not a PEM certificate"),
        (pem_of(KEY), pem_of(KEY), "not a PEM certificate"),
    ],
    ids=["expired", "not yet", "another key", "encrypted", "no key", "no certificate", "a key for a certificate"],
)
def test_a_certificate_that_cannot_be_served_is_refused(certificate: str, key: str, message: str) -> None:
    with pytest.raises(BadCertificate, match=message) as caught:
        load_user_certificate(certificate, key, NOW)
    assert "PRIVATE" not in repr(caught.value)

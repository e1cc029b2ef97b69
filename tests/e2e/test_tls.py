"""HTTPS at the front door: made here or the user's own, pinned by ``ask``, verified by ordinary clients."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import openai
import pytest

from gpufleet.providers.mock import billing
from gpufleet.routing.tls import self_signed
from tests.e2e.conftest import _network
from tests.e2e.world import CHAT_KEY, World, free_port, small_fleet, world

FILES = {"certificate": "file:chain.pem", "key": "file:key.pem"}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A fleet with a certificate made here."""
    fleet = small_fleet(free_port())
    fleet["router"]["tls"] = "self-signed"
    with world(tmp_path_factory.mktemp("t"), _network(__name__), fleet) as made:
        made.ok("up", "--yes")
        yield made


def _url(world: World) -> str:
    return f"https://{world.fleet['router']['listen']}"


def _shown(world: World) -> str:
    """The certificate that the endpoint shows, as PEM."""
    host, _, port = world.fleet["router"]["listen"].rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def _fingerprint(pem: str) -> str:
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest().upper()
    return ":".join(digest[i : i + 2] for i in range(0, 64, 2))


def _write(folder: Path, pem: str) -> None:
    """A user's two files."""
    chain, mark, key = pem.partition("-----BEGIN PRIVATE KEY-----")
    (folder / "chain.pem").write_text(chain)
    (folder / "key.pem").write_text(mark + key)
    (folder / "key.pem").chmod(0o600)


def _openai(world: World, certificate: Path) -> str:
    """One answer through the official client, which verifies against this file."""
    context = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(verify=context, trust_env=False) as http:
        client = openai.OpenAI(base_url=f"{_url(world)}/v1", api_key=CHAT_KEY, http_client=http, max_retries=0)
        stream = client.chat.completions.create(
            model="glm5", messages=[{"role": "user", "content": "hello"}], max_tokens=8, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_status_shows_the_fingerprint_of_the_certificate_that_is_served(secure: World) -> None:
    endpoint = secure.json("status")["endpoint"]
    assert endpoint["url"] == _url(secure)
    assert endpoint["tls_fingerprint"] == _fingerprint(_shown(secure))


def test_ask_pins_it_and_is_answered(secure: World) -> None:
    assert secure.json("ask", "hello")["served_by"].startswith("cell-decode-")


def test_the_openai_client_verifies_against_it(secure: World, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(_shown(secure))
    assert _openai(secure, tmp_path / "ca.pem")


def test_a_client_that_trusts_the_systems_authorities_refuses_it(secure: World) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{_url(secure)}/health", trust_env=False)


def test_plain_http_is_not_answered(secure: World) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{secure.fleet['router']['listen']}/health", trust_env=False)


def test_its_key_is_the_owners_alone_and_in_no_process_list(secure: World) -> None:
    pem = secure.state / "fleets" / "test" / "endpoint.pem"
    assert pem.stat().st_mode & 0o077 == 0
    body = pem.read_text().partition("-----BEGIN PRIVATE KEY-----")[2].splitlines()[1]
    copies = [p for p in secure.state.rglob("*") if p.is_file() and body.encode() in p.read_bytes()]
    assert all(p.stat().st_mode & 0o077 == 0 for p in copies)
    assert body.encode() not in secure.file.with_name("fleet.lock.yaml").read_bytes()


def test_another_certificate_than_the_pinned_one_is_refused_and_up_pins_anew(secure: World) -> None:
    """Here it is ours that changes; for ``ask`` that is the same as somebody in between."""
    pem = secure.state / "fleets" / "test" / "endpoint.pem"
    pem.write_text(self_signed("127.0.0.1", datetime.now(UTC)))
    refused = secure.run("ask", "hello")
    assert refused.returncode == 8
    assert "another certificate than the one pinned" in refused.stderr
    assert CHAT_KEY not in refused.stderr
    secure.ok("up", "--yes")
    assert secure.json("ask", "hello")["finish_reason"]
    assert secure.json("status")["endpoint"]["tls_fingerprint"] == _fingerprint(_shown(secure))


def test_the_users_own_certificate_is_served_after_the_next_up(secure: World) -> None:
    _write(secure.root, self_signed("127.0.0.1", datetime.now(UTC)))
    secure.fleet["router"]["tls"] = FILES
    secure.write()
    try:
        secure.ok("up", "--yes")
        assert secure.json("ask", "hello")["served_by"].startswith("cell-decode-")
        assert _openai(secure, secure.root / "chain.pem")
        shown = _fingerprint((secure.root / "chain.pem").read_text())
        assert secure.json("status")["endpoint"]["tls_fingerprint"] == shown
    finally:
        secure.fleet["router"]["tls"] = "self-signed"
        secure.write()


@pytest.mark.parametrize(
    ("age", "said"), [(timedelta(days=900), "has expired"), (-timedelta(days=9), "is not valid before")]
)
def test_a_certificate_out_of_its_time_is_refused_before_anything_is_rented(
    fresh: World, age: timedelta, said: str
) -> None:
    _write(fresh.root, self_signed("127.0.0.1", datetime.now(UTC) - age))
    fresh.fleet["router"]["tls"] = FILES
    fresh.write()
    done = fresh.run("up", "--yes")
    assert done.returncode == 3
    assert said in done.stderr
    assert billing.read(fresh.market) == []


def test_a_missing_certificate_file_and_a_foreign_key_are_refused_too(fresh: World) -> None:
    fresh.fleet["router"]["tls"] = FILES
    fresh.write()
    assert "chain.pem" in fresh.run("up", "--yes").stderr
    _write(fresh.root, self_signed("127.0.0.1", datetime.now(UTC)))
    (fresh.root / "chain.pem").write_text(self_signed("127.0.0.1", datetime.now(UTC)))
    done = fresh.run("up", "--yes")
    assert done.returncode == 3
    assert "does not belong" in done.stderr
    assert billing.read(fresh.market) == []


@pytest.mark.parametrize(("insecure", "scheme"), [(False, "https"), (True, "http")])
def test_plain_http_beyond_loopback_must_be_asked_for(fresh: World, insecure: bool, scheme: str) -> None:
    port = free_port()
    fresh.fleet["router"] |= {"listen": f"0.0.0.0:{port}", "insecure": insecure}
    fresh.write()
    fresh.ok("up", "--yes")
    endpoint = fresh.json("status")["endpoint"]
    assert endpoint["url"] == f"{scheme}://127.0.0.1:{port}"
    assert (endpoint["tls_fingerprint"] is None) is insecure
    assert fresh.json("ask", "hello")["finish_reason"]

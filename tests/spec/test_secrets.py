"""A secret written into the file is refused, and never repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.errors import InvalidFleet
from gpufleet.spec.load import load_fleet, parse_fleet
from gpufleet.spec.problems import names_a_secret
from gpufleet.spec.values import SecretRef
from tests.spec.fleets import edited, loaded, problems, refusal

LITERAL = "sk-live-0123456789abcdef0123"
PLAIN = "correct-horse-battery"


@pytest.mark.parametrize("value", [LITERAL, PLAIN])
@pytest.mark.parametrize(
    "change",
    [
        ("key: env:CHAT_KEY", "key: {}"),
        ("key: env:CHAT_KEY", "key: 'env:{}'"),
        ("key: env:CHAT_KEY", "key: [{}]"),
        ("key: env:CHAT_KEY", "key: {{a: {}}}"),
        ("key: env:CHAT_KEY", "key: |\n        {}"),
        ("  id:", "  hf_token: {}\n  id:"),
        ("  listen:", "  tls: {{certificate: file:a, key: {}}}\n  listen:"),
        ("provider: mock", "provider: {{use: rest, api_key: {}}}"),
        ("provider: mock", "provider: {{use: rest, auth: {{token: {}}}}}"),
        ("provider: mock", "provider: {{use: ssh, hosts: [{{host: a, password: {}}}]}}"),
        ("    count: 1", "    count: 1\n    provider: {{use: rest, secret: {}}}"),
        ("    count: 1", "    count: 1\n    engine: {{env: {{MY_API_KEY: {}}}}}"),
        ("    count: 1", "    count: 1\n    engine: {{extra_args: ['--api-key={}']}}"),
        ("    count: 1", "    count: 1\n    api_key: {}"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(value: str, change: tuple[str, str]) -> None:
    text = edited((change[0], change[1].format(value)))
    for problem in problems(text):
        assert value not in repr(problem)
    error = refusal(text)
    assert value not in repr((error.message, error.where, error.hint, error.args))


@pytest.mark.parametrize(
    "change",
    [
        ("name: demo", f"name: {LITERAL}"),
        ("    count: 1", f"    count: {LITERAL}"),
        ("  id: zai-org/GLM-5.1-FP8", f"  profile: {LITERAL}"),
        ("provider: mock", f"provider: {{use: rest, endpoint: {LITERAL}}}"),
        ("    count: 1", f"    count: 1\n    engine: {{env: {{SETTING: {LITERAL}}}}}"),
        ("    count: 1", f"    count: 1\n    engine: {{extra_args: [{LITERAL}]}}"),
    ],
)
def test_what_looks_like_a_key_is_not_repeated_from_any_place(change: tuple[str, str]) -> None:
    assert LITERAL not in repr(problems(edited(change)))


def test_the_message_says_how_to_write_it() -> None:
    error = refusal(edited(("key: env:CHAT_KEY", "key: hunter2")))
    assert error.message == (
        "router.channels.chat.key: a secret must be a reference, env:NAME or file:PATH; never write the value here"
    )
    assert error.where == "fleet.yaml:20"


def test_no_traceback_holds_the_secret() -> None:
    text = edited(("key: env:CHAT_KEY", f"key: {PLAIN}"))
    with pytest.raises(InvalidFleet) as caught:
        parse_fleet(text)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_public_keys_and_references_are_no_secrets() -> None:
    host = "{host: a, host_key: ssh-ed25519 AAAA, key: file:~/.ssh/id}"
    assert loaded(("provider: mock", f"provider: {{use: ssh, hosts: [{host}]}}")).warnings == ()


@pytest.mark.parametrize("text", ["env:A", "env:_a9", "file:a b", "file:/x/y.key", "file:~/k"])
def test_a_reference_keeps_its_text(text: str) -> None:
    assert str(SecretRef.parse(text)) == text


@pytest.mark.parametrize("value", ["env:", "file:", "ENV:A", "env:9A", "env:a-b", "file:a\nb", "a", "", None, 5])
def test_anything_else_is_no_reference(value: object) -> None:
    with pytest.raises(ValueError, match="reference"):
        SecretRef.parse(value)


def test_a_secret_is_read_without_its_line_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "k").write_text("  value\n")
    monkeypatch.setenv("K", "other\n")
    assert SecretRef("file", "k").read(tmp_path) == "value"
    assert SecretRef("env", "K").read(tmp_path) == "other"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" \n", "secret file:k is empty"),
        (b"\xff\xfe", "secret file:k is not text in UTF-8"),
        (b"x" * 70_000, "secret file:k is larger than 64 KB"),
        (None, "secret file:k cannot be read: No such file or directory"),
    ],
)
def test_a_bad_secret_file_is_named(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "k").write_bytes(content)
    with pytest.raises(InvalidFleet, match=message):
        SecretRef("file", "k").read(tmp_path)


def test_an_unset_variable_is_named_with_the_command_that_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("K", raising=False)
    with pytest.raises(InvalidFleet) as caught:
        SecretRef("env", "K").read(Path())
    assert (caught.value.message, caught.value.hint) == ("secret env:K is not set", "export K=...")


@pytest.mark.parametrize(
    "key", ["key", "api_key", "apiKey", "accessKey", "HF_TOKEN", "password", "--api-key", "a.token"]
)
def test_keys_that_name_a_secret(key: str) -> None:
    assert names_a_secret(key)


@pytest.mark.parametrize(
    "key", ["host_key", "sshKey", "public_key", "monkey", "max_tokens", "--tokenizer", "keys1", ""]
)
def test_keys_that_do_not(key: str) -> None:
    assert not names_a_secret(key)


def test_a_secret_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(edited(("key: env:CHAT_KEY", "key: file:chat.key")))
    key = tmp_path / "chat.key"
    key.write_text("secret-of-the-chat")
    key.chmod(0o640)
    (warning,) = load_fleet(file).warnings
    assert warning.message == "router.channels.chat.key: others on this machine can read chat.key"
    assert warning.hint == f"chmod 600 {key}"
    key.chmod(0o600)
    assert load_fleet(file).warnings == ()

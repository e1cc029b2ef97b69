"""Converted weights in a store that outlives the nodes: real rclone against a real S3 server, and a directory."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpufleet.domain.jobs import JobEvent
from gpufleet.remote.errors import JobFailed
from gpufleet.serving.store import RCLONE_VERSION
from tests.playbook.conftest import Twin, finished, killed, timed
from tests.playbook.test_on_twin import tool

RCLONE = Path(sys.executable).with_name("rclone")
KEYS = {"STORE_ACCESS_KEY": "AKIAEXAMPLE", "STORE_SECRET_KEY": "a-secret-that-nobody-sees"}
FACTS = {"model": "m/x", "revision": "main", "tilert": "0.1.6.post3", "profile": "glm5"}
SET = {"GF_MODEL_ID": "m/x", "GF_REVISION": "main", "GF_TILERT_VERSION": "0.1.6.post3", "GF_PROFILE": "glm5"}


@dataclass
class Store:
    """A place for one set, and the files behind it."""

    files: Path
    inputs: dict[str, str]
    secrets: dict[str, str]

    def delete(self, name: str) -> None:
        """Through the server where there is one, which remembers what it has listed."""
        access, secret = KEYS.values()
        endpoint = self.inputs["GF_STORE_ENDPOINT"]
        settings = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": endpoint}
        settings |= {"ACCESS_KEY_ID": access, "SECRET_ACCESS_KEY": secret}
        env = {f"RCLONE_CONFIG_WEIGHTS_{key}": value for key, value in settings.items()}
        words = [str(RCLONE), "deletefile", f"{self.inputs['GF_STORE']}/{name}"]
        subprocess.run(words, env={**os.environ, **env, "RCLONE_CONFIG": ""}, check=True, capture_output=True)

    def push(self, twin: Twin, folder: Path) -> list[JobEvent]:
        return twin.run("weights-push", secrets=self.secrets, GF_CONVERTED_DIR=str(folder), **self.inputs)

    def pull(self, twin: Twin, folder: Path, **more: str) -> list[JobEvent]:
        values = {"GF_CONVERTED_DIR": str(folder), **SET, **self.inputs, **more}
        return twin.run("weights-pull", secrets=self.secrets, **values)


@contextmanager
def s3_server(files: Path) -> Iterator[str]:
    """rclone's own S3 server over a folder; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pair = ",".join(KEYS.values())
    words = [RCLONE, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", pair, files]
    server = subprocess.Popen([*map(str, words)], env={**os.environ, "RCLONE_CONFIG": ""}, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture(params=["s3", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    files = tmp_path / "store"
    (files / "bucket").mkdir(parents=True)
    inputs = {"GF_STORE_REGION": "", "GF_RCLONE_VERSION": RCLONE_VERSION}
    if request.param == "directory":
        root = str(files / "bucket")
        here = {"GF_STORE": f"{root}/set", "GF_STORE_ROOT": root, "GF_STORE_ENDPOINT": ""}
        yield Store(files / "bucket/set", inputs | here, {})
        return
    with s3_server(files) as url:
        there = {"GF_STORE": "weights:bucket/set", "GF_STORE_ROOT": "", "GF_STORE_ENDPOINT": url}
        yield Store(files / "bucket/set", inputs | there, KEYS)


def weights(folder: Path, *, fill: bytes = b"w") -> Path:
    """A small set with its manifest."""
    folder.mkdir(parents=True)
    for number in range(4):
        (folder / f"model-{number}.safetensors").write_bytes(fill * 300_000 + bytes([number]) * 1000)
    (folder / "chat_template.jinja").write_text("hello")
    tool("manifest.py", "write", folder, *(f"{key}={value}" for key, value in FACTS.items()))
    return folder


def same(left: Path, right: Path) -> bool:
    names = {p.name for p in left.iterdir()}
    return names == {p.name for p in right.iterdir()} and all(
        (left / name).read_bytes() == (right / name).read_bytes() for name in names
    )


def told(events: list[JobEvent], fact: str) -> str:
    return next(event.data[fact] for event in events if fact in event.data)


def test_an_empty_store_is_no_failure_and_brings_nothing(twin: Twin, store: Store) -> None:
    events = store.pull(twin, twin.work / "w/there")
    assert finished(events)["pull"] == "done"
    assert told(events, "weights_in_store") == "no"
    assert not (twin.work / "w/there").exists()


def test_what_one_node_pushed_another_pulls_byte_for_byte(twin: Twin, store: Store) -> None:
    made = weights(twin.work / "w/made")
    assert finished(store.push(twin, made))["push"] == "done"
    assert finished(store.push(twin, made))["push"] == "already so"
    events = store.pull(twin, twin.work / "w/there")
    assert told(events, "weights_in_store") == "yes"
    assert same(made, twin.work / "w/there")
    assert finished(store.pull(twin, twin.work / "w/there"))["pull"] == "already so"


def test_a_push_that_was_cut_is_not_listed_and_the_next_one_completes_it(twin: Twin, store: Store) -> None:
    made = weights(twin.work / "w/made")
    store.push(twin, made)
    (folder,) = [p for p in store.files.iterdir() if p.is_dir()]
    store.delete("manifest.json")
    store.delete(f"{folder.name}/model-1.safetensors")
    assert told(store.pull(twin, twin.work / "w/there"), "weights_in_store") == "no"
    store.push(twin, made)
    store.pull(twin, twin.work / "w/there")
    assert same(made, twin.work / "w/there")


def test_a_pull_goes_on_with_what_is_not_there_yet(twin: Twin, store: Store) -> None:
    made = weights(twin.work / "w/made")
    store.push(twin, made)
    partial = twin.work / "w/there.tmp"
    partial.mkdir()
    for name in ("manifest.json", "model-0.safetensors"):
        shutil.copy(made / name, partial)
    (partial / "model-1.safetensors").write_bytes(b"short")
    kept = (partial / "model-0.safetensors").stat().st_ino
    store.pull(twin, twin.work / "w/there")
    assert same(made, twin.work / "w/there")
    assert (twin.work / "w/there/model-0.safetensors").stat().st_ino == kept


def test_a_file_that_was_damaged_in_the_store_is_never_served(twin: Twin, store: Store) -> None:
    store.push(twin, weights(twin.work / "w/made"))
    (folder,) = [p for p in store.files.iterdir() if p.is_dir()]
    broken = folder / "model-2.safetensors"
    broken.write_bytes(b"x" * broken.stat().st_size)
    with pytest.raises(JobFailed, match=r"model-2\.safetensors was damaged"):
        store.pull(twin, twin.work / "w/there")
    assert not (twin.work / "w/there").exists()


def test_two_that_push_at_once_never_mix(twin: Twin, store: Store) -> None:
    """The manifests name folders of their own: whichever is listed is whole."""
    first, second = weights(twin.work / "w/a", fill=b"a"), weights(twin.work / "w/b", fill=b"b")
    store.push(twin, first)
    store.push(twin, second)
    store.pull(twin, twin.work / "w/there")
    assert same(second, twin.work / "w/there")
    assert len([p for p in store.files.iterdir() if p.is_dir()]) == 2


def test_weights_of_another_release_are_not_taken(twin: Twin, store: Store) -> None:
    store.push(twin, weights(twin.work / "w/made"))
    with pytest.raises(JobFailed, match=r"is of .*0\.1\.6\.post3"):
        store.pull(twin, twin.work / "w/there", GF_TILERT_VERSION="0.1.7")
    assert not (twin.work / "w/there").exists()


@pytest.mark.parametrize("store", ["directory"], indirect=True)
def test_a_directory_that_is_not_mounted_is_no_empty_store(twin: Twin, store: Store) -> None:
    shutil.rmtree(store.files.parent)
    for work in (store.pull, store.push):
        folder = twin.work / "w/x" if work == store.pull else weights(twin.work / "w/made")
        with pytest.raises(JobFailed, match="is it mounted"):
            work(twin, folder)
    assert not store.files.parent.exists()


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_wrong_keys_fail_and_show_nowhere(twin: Twin, store: Store) -> None:
    store.secrets = {**KEYS, "STORE_SECRET_KEY": "another-secret-that-nobody-sees"}
    with pytest.raises(JobFailed) as failure:
        store.pull(twin, twin.work / "w/there")
    assert "refuses these keys" in str(failure.value)
    written = b"".join(p.read_bytes() for p in twin.work.rglob("*") if p.is_file())
    assert b"secret-that-nobody-sees" not in written + str(failure.value).encode()


@pytest.mark.parametrize("kill_after", [i / 12 for i in range(12)])
@pytest.mark.slow
def test_a_pull_killed_anywhere_leaves_nothing_unverified_and_goes_on(
    twin: Twin, tmp_path: Path, kill_after: float
) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    here = {"GF_STORE": f"{root}/set", "GF_STORE_ROOT": str(root), "GF_STORE_ENDPOINT": ""}
    store = Store(root / "set", {"GF_STORE_REGION": "", "GF_RCLONE_VERSION": RCLONE_VERSION, **here}, {})
    made = weights(twin.work / "w/made")
    store.push(twin, made)
    took = timed(lambda: store.pull(twin, twin.work / "w/warm"))
    there = twin.work / "w/there"
    killed(twin, took * kill_after, lambda: store.pull(twin, there))
    assert not there.exists() or same(made, there)
    store.pull(twin, there)
    assert same(made, there)

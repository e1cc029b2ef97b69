"""The shipped playbooks on a node whose programs are strict stand-ins."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpufleet.remote.errors import JobFailed
from tests.playbook.conftest import Twin, finished

CHECK = {
    "GF_RUNTIME": "docker",
    "GF_GPU_MODEL": "B200",
    "GF_GPU_COUNT": "8",
    "GF_MIN_DRIVER": "580",
    "GF_MIN_DISK_GB": "1600",
    "GF_MIN_RAM_GB": "900",
    "GF_RDMA": "required",
}
BASE = "ghcr.io/tile-ai/tilert:cu132-latest"
IMAGE = {
    "GF_BASE_IMAGE": BASE,
    "GF_IMAGE_TAG": "gpufleet/decode:abc",
    "GF_DOCKERFILE": f"FROM {BASE}\nENV PATH=/opt/conda/envs/tilert/bin:$PATH\n"
    "RUN pip install --no-deps tilert==0.1.6.post3\n",
}
SOURCE = {"GF_MODEL_ID": "zai-org/GLM-5.1-FP8", "GF_REVISION": "main"}


def fetch(twin: Twin, **more: str) -> dict[str, str]:
    values = {**SOURCE, "GF_MODEL_DIR": f"{twin.work}/weights/GLM", "GF_HF_VERSION": "1.2.3", **more}
    return finished(twin.run("weights-fetch", **values))


def convert_inputs(twin: Twin) -> dict[str, str]:
    """What turns the checkpoint that `fetch` has brought into TileRT's layout."""
    return {
        **SOURCE,
        "GF_RUNTIME": "docker",
        "GF_IMAGE_TAG": IMAGE["GF_IMAGE_TAG"],
        "GF_MODEL_DIR": f"{twin.work}/weights/GLM",
        "GF_CONVERTED_DIR": f"{twin.work}/weights/GLM-TileRT",
        "GF_TILERT_VERSION": "0.1.6.post3",
        "GF_PROFILE": "glm5",
        "GF_LAYERS": "79",
        "GF_MIN_RAM_GB": "900",
        "GF_MIN_DISK_GB": "715",
        "GF_DEVICES": "8",
    }


def convert(twin: Twin, **more: str) -> dict[str, str]:
    return finished(twin.run("weights-convert", **{**convert_inputs(twin), **more}))


def test_a_good_node_passes_the_check_and_tells_what_it_is(twin: Twin) -> None:
    events = twin.run("check", **CHECK)
    assert events[0].data["gpus"] == "8 x NVIDIA B200"
    assert events[0].data["rdma_ports"].startswith("mlx5_0:1,")
    assert finished(events)["fabric"] == "done"
    again = finished(twin.run("check", **CHECK))
    assert again.pop("limits") == "not needed here"
    assert set(again.values()) == {"already so", "finished earlier"}


@pytest.mark.parametrize(
    ("facts", "values", "message"),
    [
        ({"faults": ["bad-gpu"]}, {}, "8 x B200 needed|no usable GPU"),
        ({"gpu_model": "H200"}, {}, "8 x B200 needed, seen: 8 x NVIDIA H200"),
        ({"faults": ["old-driver"]}, {}, "driver 570.86.15 is too old: 580"),
        ({"disk_gb": 500}, {}, r"disk too small: \d+ GB free .* 1600 GB needed"),
        ({"ram_gb": 500}, {}, r"not enough memory: \d+ GB, 900 GB needed"),
        ({"rdma": {"devices": 0}}, {}, "no active RDMA port"),
    ],
)
def test_a_bad_node_is_refused_with_what_was_seen_and_what_is_needed(
    twin: Twin, facts: dict[str, object], values: dict[str, str], message: str
) -> None:
    twin.describe(**facts)
    with pytest.raises(JobFailed, match=message):
        twin.run("check", **{**CHECK, **values})


def test_a_machine_without_gpus_passes_when_none_are_asked_for(twin: Twin) -> None:
    twin.describe(gpu_count=0)
    events = twin.run("check", **{**CHECK, "GF_GPU_COUNT": "0", "GF_RDMA": "off"})
    assert finished(events)["gpus"] == "not needed here"


def test_an_image_is_pulled_built_and_recorded_once(twin: Twin) -> None:
    events = twin.run("image", **IMAGE)
    assert finished(events) == {"pull": "done", "build": "done", "record": "done"}
    assert events[-2].data["base_digest"].startswith("ghcr.io/tile-ai/tilert@sha256:")
    assert finished(twin.run("image", **IMAGE))["build"] == "finished earlier"


def test_an_image_that_does_not_exist_is_named_without_retries(twin: Twin) -> None:
    with pytest.raises(JobFailed, match=r"there is no image ghcr\.io/tile-ai/tilert:nope"):
        twin.run("image", **{**IMAGE, "GF_BASE_IMAGE": "ghcr.io/tile-ai/tilert:nope"})


def test_a_checkpoint_is_fetched_once(twin: Twin) -> None:
    assert fetch(twin)["download"] == "done"
    assert fetch(twin)["download"] == "finished earlier"


def test_a_checkpoint_that_is_not_whole_is_told_from_one_that_is(twin: Twin) -> None:
    fetch(twin)
    folder = twin.work / "weights/GLM"
    assert tool("checkpoint.py", "whole", folder) == ""
    shard = next(folder.glob("model-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "its header says" in tool("checkpoint.py", "whole", folder)
    shard.write_bytes(b"")
    assert "cut short" in tool("checkpoint.py", "whole", folder)
    shard.unlink()
    assert "is missing" in tool("checkpoint.py", "whole", folder)


def tool(name: str, *arguments: object) -> str:
    """What a program that is embedded in playbooks prints."""
    path = Path(__file__).parents[2] / "playbooks/files" / name
    words = [sys.executable, str(path), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (done.stdout + done.stderr == "")
    return done.stdout + done.stderr


def test_a_repository_that_does_not_exist_is_named_without_retries(twin: Twin) -> None:
    with pytest.raises(JobFailed, match="has no repository zai-org/nope"):
        fetch(twin, GF_MODEL_ID="zai-org/nope")


def test_weights_are_converted_whole_with_tokenizer_and_manifest(twin: Twin) -> None:
    twin.run("image", **IMAGE)
    fetch(twin)
    left_over = twin.work / "weights/GLM-TileRT.tmp"
    left_over.mkdir()
    (left_over / "model.safetensors-00001-of-00099.safetensors").touch()
    assert convert(twin) == {"room": "done", "convert": "done", "publish": "done", "record": "done"}
    converted = twin.work / "weights/GLM-TileRT"
    manifest = json.loads((converted / "manifest.json").read_text())
    assert manifest["facts"]["tilert"] == "0.1.6.post3"
    assert {"chat_template.jinja", "tokenizer.json", "config.json"} <= manifest["files"].keys()
    assert not left_over.exists()
    assert convert(twin)["convert"] == "finished earlier"
    (converted / "model.safetensors.index.json").unlink()
    assert convert(twin)["convert"] == "done"


def test_a_conversion_that_ran_out_of_memory_says_so(twin: Twin) -> None:
    twin.run("image", **IMAGE)
    fetch(twin)
    twin.describe(ram_gb=500)
    with pytest.raises(JobFailed, match="not enough free memory to convert: 531 GB, 900 GB needed"):
        convert(twin)
    twin.describe(faults=["convert-oom"])
    with pytest.raises(JobFailed, match="holds the whole model in memory"):
        convert(twin)
    assert not (twin.work / "weights/GLM-TileRT").exists()


def test_converted_weights_are_shared_and_copied_and_a_broken_copy_goes_on(twin: Twin) -> None:
    source, copy = twin.work / "weights/source", twin.work / "weights/copy"
    _small_weights(source)
    with socket.create_server((twin.address, 0)) as free:
        port = free.getsockname()[1]
    share = {"GF_CONVERTED_DIR": str(source), "GF_SHARE_IP": twin.address, "GF_SHARE_PORT": str(port)}
    assert finished(twin.run("weights-share", **share)) == {"share": "done"}
    assert finished(twin.run("weights-share", **share)) == {"share": "finished earlier"}
    partial = Path(f"{copy}.tmp")
    partial.mkdir()
    shutil.copy(source / "manifest.json", partial)
    (partial / "a.safetensors").write_bytes((source / "a.safetensors").read_bytes()[:1000])
    (partial / "b.safetensors").write_bytes(b"x" * 2_000_000)
    values = {"GF_CONVERTED_DIR": str(copy), "GF_SOURCE_URL": f"http://{twin.address}:{port}"}
    events = twin.run("weights-copy", **values)
    assert finished(events) == {"copy": "done", "record": "done"}
    assert "step-retried" not in {str(event.kind) for event in events}
    for name in ("a.safetensors", "b.safetensors", "empty.txt"):
        assert (copy / name).read_bytes() == (source / name).read_bytes()
    assert finished(twin.run("weights-copy", **values))["copy"] == "finished earlier"


def _small_weights(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "a.safetensors").write_bytes(bytes(range(256)) * 20_000)
    (folder / "b.safetensors").write_bytes(b"b" * 100_000)
    (folder / "empty.txt").touch()
    tool("manifest.py", "write", folder, "model=m")


HELLO = {
    "GF_EXPECT_PROTOCOL": "2",
    "GF_EXPECT_LAYOUT": "10",
    "GF_EXPECT_TRANSPORT": "nixl",
    "GF_EXPECT_SENDERS": "8",
    "GF_EXPECT_MAX_SEQ_LEN": "4096",
}
GREETING = {
    "magic": "tilert-pd",
    "protocol_version": 2,
    "layout_version": 10,
    "transport": "nixl",
    "senders": 8,
    "max_seq_len": 8192,
    "busy": False,
}


def hello(twin: Twin, greeting: bytes) -> None:
    with socket.create_server((twin.address, 0)) as server:

        def greet() -> None:
            with contextlib.suppress(OSError):  # the test is over
                while True:
                    peer, _address = server.accept()
                    peer.sendall(greeting)
                    peer.close()

        threading.Thread(target=greet, daemon=True).start()
        twin.run("hello", GF_PEER_IP=twin.address, GF_PEER_PORT=str(server.getsockname()[1]), **HELLO)


def _message(**changes: object) -> bytes:
    body = json.dumps({**GREETING, **changes}).encode()
    return len(body).to_bytes(4, "big") + body


def test_a_decode_node_that_agrees_passes(twin: Twin) -> None:
    hello(twin, _message())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout_version": 50}, "layout_version is 50, the prefill node has 10"),
        ({"transport": "mooncake"}, "transport is mooncake"),
        ({"max_seq_len": 1024}, "max_seq_len is 1024, the prefill node has 4096"),
    ],
)
def test_a_decode_node_that_differs_is_named_with_the_field(
    twin: Twin, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(JobFailed, match=message):
        hello(twin, _message(**changes))

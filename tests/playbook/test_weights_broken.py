"""Conversions and copies that are killed, starved, doubled or fed with something else publish nothing unverified."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.remote.errors import JobFailed
from tests.playbook.conftest import Twin, killed, timed
from tests.playbook.test_on_twin import IMAGE, convert, convert_inputs, fetch, tool

POINTS = [point / 12 for point in range(12)]


def whole(folder: Path) -> bool:
    """What a decode node checks, byte by byte."""
    return tool("manifest.py", "compare", folder) == "" and tool(
        "converted.py", folder, "--layers", 79, "--devices", 8
    ) == ""  # fmt: skip


def prepared(twin: Twin) -> Path:
    twin.run("image", **IMAGE)
    fetch(twin)
    return twin.work / "weights/GLM-TileRT"


@pytest.mark.slow
def test_a_conversion_killed_at_any_point_publishes_nothing_or_all_and_the_next_one_ends(twin: Twin) -> None:
    converted = prepared(twin)
    took = timed(lambda: convert(twin))
    for point in POINTS:
        shutil.rmtree(converted)
        killed(twin, took * point, lambda: convert(twin))
        assert not converted.exists() or whole(converted), point
        convert(twin)
        assert whole(converted), point


@pytest.mark.slow
def test_a_copy_killed_at_any_point_publishes_nothing_or_all_and_the_next_one_ends(twin: Twin) -> None:
    source = prepared(twin)
    convert(twin)
    there, port = twin.work / "weights/there", _free_port(twin)
    twin.run("weights-share", GF_CONVERTED_DIR=str(source), GF_SHARE_IP=twin.address, GF_SHARE_PORT=str(port))

    def copy() -> None:
        twin.run("weights-copy", GF_CONVERTED_DIR=str(there), GF_SOURCE_URL=f"http://{twin.address}:{port}")

    took = timed(copy)
    for point in POINTS:
        shutil.rmtree(there)
        killed(twin, took * point, copy)
        assert not there.exists() or whole(there), point
        # The server that shares belonged to the node too.
        twin.run("weights-share", GF_CONVERTED_DIR=str(source), GF_SHARE_IP=twin.address, GF_SHARE_PORT=str(port))
        copy()
        assert whole(there), point


def test_a_conversion_on_a_full_disk_publishes_nothing(twin: Twin) -> None:
    converted = prepared(twin)
    twin.describe(disk_gb=1)
    with pytest.raises(JobFailed, match=r"not enough free space to convert: \d GB, 715 GB needed"):
        convert(twin)
    with pytest.raises(JobFailed, match="No space left"):
        convert(twin, GF_MIN_DISK_GB="0")
    assert not converted.exists()
    twin.describe()
    convert(twin)
    assert whole(converted)


def test_a_checkpoint_without_the_fp8_tensors_is_not_converted(twin: Twin) -> None:
    converted = prepared(twin)
    index = twin.work / "weights/GLM/model.safetensors.index.json"
    names = json.loads(index.read_text())
    names["weight_map"] = {k: v for k, v in names["weight_map"].items() if not k.startswith("model.layers.40.")}
    index.write_text(json.dumps(names))
    with pytest.raises(JobFailed, match="KeyError: 'layer_40'"):
        convert(twin)
    assert not converted.exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: _cut(next(folder.glob("*-00003-of-*.safetensors"))), "its header says"),
        (lambda folder: (folder / "model.safetensors-00001-of-00099.safetensors").touch(), "is not in the index"),
        (lambda folder: next(folder.glob("*-00003-of-*.safetensors")).unlink(), "is missing"),
        (lambda folder: (folder / "model.safetensors.index.json").unlink(), "has no model.safetensors.index.json"),
    ],
    ids=["cut short", "left over", "missing", "no index"],
)
def test_what_the_converter_left_broken_is_not_published(twin: Twin, damage: Callable[[Path], None], said: str) -> None:
    """The stand-in's own exit code is 0, as the real converter's would be."""
    converted = prepared(twin)
    convert(twin)
    unpublished = Path(f"{converted}.tmp")
    converted.rename(unpublished)
    (unpublished / "manifest.json").unlink()
    (unpublished / ".converted").write_text("zai-org/GLM-5.1-FP8 main 0.1.6.post3 glm5\n")
    damage(unpublished)
    with pytest.raises(JobFailed, match=said):
        convert(twin)
    assert not converted.exists()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_two_nodes_that_share_a_disk_convert_once(twin: Twin) -> None:
    converted = prepared(twin)
    failures: list[BaseException] = []

    def work(node: Twin) -> None:
        try:
            node.run("weights-convert", **convert_inputs(twin))
        except BaseException as failure:  # noqa: BLE001 - told below
            failures.append(failure)

    beside = Twin(twin.root, twin.address, work="work-of-another-node")
    both = [threading.Thread(target=work, args=(node,)) for node in (twin, beside)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert failures == []
    assert whole(converted)


def _free_port(twin: Twin) -> int:
    with socket.create_server((twin.address, 0)) as free:
        return int(free.getsockname()[1])

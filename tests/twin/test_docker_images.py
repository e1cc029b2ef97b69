"""Images of the docker stand-in: pulled, built step by step, committed, and with only what was installed inside."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.twin.nodes import docker, end_all, eventually, make_root, run

TILERT = "ghcr.io/tile-ai/tilert:cu132-latest"
VLLM = "vllm/vllm-openai:v0.26.0"
ON_PATH = "ENV PATH=/opt/conda/envs/tilert/bin:$PATH\n"
PACKAGES = "nixl==1.3.1 transformers==5.4.0 fastapi uvicorn httpx requests pydantic"
DECODE = f"FROM {TILERT}\n{ON_PATH}RUN pip install --no-deps tilert==0.1.6.post3\nRUN pip install {PACKAGES}\n"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    folder = make_root(tmp_path / "root")
    yield folder
    end_all(folder)


def build(root: Path, dockerfile: str, tag: str = "made:1") -> subprocess.CompletedProcess[str]:
    return docker(root, "build", "-t", tag, "-", stdin=dockerfile)


def inside(root: Path, image: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the image's own, past its entrypoint."""
    return docker(root, "run", "--rm", "--entrypoint", argv[0], image, *argv[1:])


def test_a_pull_shows_layers_and_is_quick_the_second_time(root: Path) -> None:
    first, second = docker(root, "pull", VLLM).stdout, docker(root, "pull", VLLM).stdout
    assert first.count("Pull complete") == 6 and "Status: Downloaded newer image" in first
    assert second.count("Already exists") == 6 and "Status: Image is up to date" in second
    assert first.splitlines()[-1] == f"docker.io/{VLLM}"


def test_a_killed_pull_keeps_the_layers_it_has(tmp_path: Path) -> None:
    root = make_root(tmp_path / "slow", time_scale=20)  # two layers take 0.2 s
    pull = subprocess.Popen([root / "bin/docker", "pull", VLLM], stdout=subprocess.PIPE)
    eventually(lambda: len(list((root / "docker/layers").iterdir())) >= 2, "two layers")
    pull.kill()
    pull.communicate()
    assert docker(root, "pull", VLLM).stdout.count("Already exists") >= 2


def test_an_image_is_found_by_tag_digest_and_id(root: Path) -> None:
    docker(root, "pull", VLLM)
    digest = docker(root, "image", "inspect", "--format", "{{index .RepoDigests 0}}", VLLM).stdout.strip()
    identifier = docker(root, "image", "inspect", "-f", "{{.Id}}", VLLM).stdout.strip()
    assert digest.startswith("vllm/vllm-openai@sha256:")
    for name in (digest, identifier, identifier.removeprefix("sha256:")[:12]):
        assert docker(root, "image", "inspect", "-f", "{{.Id}}", name).stdout.strip() == identifier


def test_an_image_can_be_pulled_by_digest(root: Path) -> None:
    docker(root, "pull", VLLM)
    digest = docker(root, "image", "inspect", "--format", "{{index .RepoDigests 0}}", VLLM).stdout.strip()
    other = make_root(root.parent / "other")
    assert docker(other, "pull", digest).returncode == 0
    assert docker(other, "pull", "vllm/vllm-openai@sha256:" + "0" * 64).returncode == 1


def test_a_build_installs_packages_and_a_second_one_does_nothing(root: Path) -> None:
    first = build(root, DECODE)
    assert first.returncode == 0, first.stderr
    assert build(root, DECODE).stderr.count("CACHED") == 2
    code = (
        "import tilert, nixl; from importlib.metadata import version as v; print(tilert.__version__, v('transformers'))"
    )
    assert docker(root, "run", "--rm", "made:1", "python", "-c", code).stdout == "0.1.6.post3 5.4.0\n"


def test_tilerts_image_needs_its_environment_on_the_path_in_build_steps(root: Path) -> None:
    done = build(root, f"FROM {TILERT}\nRUN pip install --no-deps tilert==0.1.6.post3\n")
    assert done.returncode == 1
    assert "did not complete successfully: exit code: 127" in done.stderr


def test_tilerts_entrypoint_puts_its_python_on_the_path(root: Path) -> None:
    assert docker(root, "run", "--rm", TILERT, "python", "--version").stdout == "Python 3.12.11\n"
    assert inside(root, TILERT, "python", "--version").returncode == 127
    assert inside(root, TILERT, "/opt/conda/envs/tilert/bin/python", "--version").stdout == "Python 3.12.11\n"


@pytest.mark.parametrize(
    ("image", "argv", "words"),
    [
        (TILERT, ["python", "-m", "tilert.pd_vllm.decode_server"], "No module named 'tilert'"),
        (TILERT, ["python", "-m", "vllm.entrypoints.cli.main", "serve"], "No module named 'vllm'"),
        (TILERT, ["python", "-c", "import fastapi"], "No module named 'fastapi'"),
        (VLLM, ["python3", "-m", "tilert.pd_vllm.pd_router"], "No module named 'tilert'"),
        (VLLM, ["python3", "-m", "vllm_router.launch_router"], "No module named 'vllm_router'"),
        (VLLM, ["python3", "-c", "import nixl"], "No module named 'nixl'"),
        (VLLM, ["vllm-router"], "executable file not found in $PATH"),
    ],
)
def test_what_an_image_lacks_does_not_start(images: Path, image: str, argv: list[str], words: str) -> None:
    done = docker(images, "run", "--rm", image, *argv) if image == TILERT else inside(images, image, *argv)
    assert done.returncode in (1, 127)
    assert words in done.stderr


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node that has pulled both images; nothing keeps running on it."""
    folder = make_root(tmp_path_factory.mktemp("images") / "root")
    for image in (TILERT, VLLM):
        docker(folder, "pull", "-q", image)
    return folder


@pytest.mark.parametrize(
    ("lacking", "argv", "words"),
    [
        ("nixl==1.3.1 ", ["--transport", "nixl"], "No module named 'nixl'"),
        ("", [], "No module named 'mooncake'"),
        ("fastapi ", ["--transport", "nixl"], "No module named 'fastapi'"),
        ("transformers==5.4.0 ", ["--transport=nixl"], "TokenizersBackend"),
    ],
)
def test_the_decode_server_needs_every_package(images: Path, lacking: str, argv: list[str], words: str) -> None:
    build(images, DECODE.replace(lacking, "") if lacking else DECODE, "lacking:1")
    server = ["python", "-m", "tilert.pd_vllm.decode_server", "--engine", "tilert", *argv]
    assert words in docker(images, "run", "--rm", "--gpus", "all", "lacking:1", *server).stderr


def test_vllm_is_the_version_of_its_tag(images: Path) -> None:
    assert inside(images, VLLM, "vllm", "--version").stdout == "0.26.0\n"


@pytest.mark.parametrize(
    ("dockerfile", "words"),
    [
        ("", "the Dockerfile cannot be empty"),
        ("RUN true\n", "no build stage in current context"),
        ("FROM ubuntu\nFLY away\n", "dockerfile parse error on line 2: unknown instruction: FLY"),
        ("FROM ubuntu\nCOPY a b\n", '"a": not found'),
        ("FROM no/such\n", "no/such: failed to resolve source metadata for no/such"),
        ("FROM ubuntu:1.0\n", "ubuntu:1.0: not found"),
        ("FROM ubuntu\nRUN exit 3\n", 'process "/bin/sh -c exit 3" did not complete successfully: exit code: 3'),
        (f"FROM {VLLM}\nRUN pip install tilert==9.9\n", "No matching distribution found for tilert==9.9"),
        (f"FROM {VLLM}\nRUN pip install no-such-package\n", "No matching distribution found for no-such-package"),
        (f"FROM {VLLM}\nRUN pip install --frob x\n", "no such option: --frob"),
    ],
)
def test_a_build_that_cannot_work_says_why(images: Path, dockerfile: str, words: str) -> None:
    done = build(images, dockerfile)
    assert done.returncode == 1
    assert words in done.stderr


def test_a_failed_build_leaves_the_tag_where_it_was(images: Path) -> None:
    build(images, "FROM ubuntu\nLABEL n=1\n", "kept:1")
    build(images, "FROM ubuntu\nLABEL n=2\nRUN false\n", "kept:1")
    assert docker(images, "image", "inspect", "-f", '{{index .Config.Labels "n"}}', "kept:1").stdout == "1\n"


def test_instructions_shape_the_image(images: Path) -> None:
    build(
        images,
        "ARG BASE=ubuntu\nFROM $BASE\n# a comment\nENV A=1 B=\"two words\"\nENV C old style\nLABEL k=v\n"
        'WORKDIR /srv\nENTRYPOINT ["sh", "-c"]\nCMD ["echo $A $B $C ${D:-none}"]\nRUN echo one \\\n  && echo two\n',
        "shaped:1",
    )  # fmt: skip
    assert docker(images, "run", "--rm", "shaped:1").stdout == "1 two words old style none\n"
    config = json.loads(docker(images, "image", "inspect", "shaped:1").stdout)[0]["Config"]
    assert (config["WorkingDir"], config["Labels"], config["Entrypoint"]) == ("/srv", {"k": "v"}, ["sh", "-c"])


def test_an_empty_entrypoint_drops_the_bases(images: Path) -> None:
    build(images, f"FROM {VLLM}\nENTRYPOINT []\n", "plain:1")
    assert docker(images, "run", "--rm", "plain:1", "vllm", "--version").stdout == "0.26.0\n"


def test_a_new_build_moves_the_tag(images: Path) -> None:
    build(images, "FROM ubuntu\nLABEL n=1\n", "moved:1")
    build(images, "FROM ubuntu\nLABEL n=2\n", "moved:1")
    assert docker(images, "images", "-q", "moved:1").stdout.count("\n") == 1
    assert docker(images, "image", "inspect", "-f", '{{index .Config.Labels "n"}}', "moved:1").stdout == "2\n"


def test_pip_keeps_what_satisfies_and_upgrades_when_told(images: Path) -> None:
    version = f"FROM {VLLM}\nRUN pip install transformers{{}}\n"
    for spelling, result in (("", "5.5.0"), ("==5.4.0", "5.4.0")):
        build(images, version.format(spelling), "upgraded:1")
        code = "import transformers; print(transformers.__version__)"
        assert inside(images, "upgraded:1", "python3", "-c", code).stdout == f"{result}\n"


def test_a_container_can_be_committed_with_what_was_installed_in_it(root: Path) -> None:
    docker(root, "run", "--name", "work", "--entrypoint", "pip", VLLM, "install", "-q", "nixl==1.3.1")
    assert docker(root, "commit", "work", "saved:1").returncode == 0
    assert inside(root, "saved:1", "python3", "-c", "import nixl; print(nixl.__version__)").stdout == "1.3.1\n"
    assert inside(root, VLLM, "python3", "-c", "import nixl").returncode == 1


def test_tag_and_rmi(root: Path) -> None:
    docker(root, "pull", "ubuntu")
    docker(root, "tag", "ubuntu", "mine:2")
    assert docker(root, "image", "inspect", "-f", "{{.RepoTags}}", "mine:2").stdout == "[mine:2 ubuntu:latest]\n"
    docker(root, "run", "--name", "user", "ubuntu", "true")
    assert "is using its referenced image" in docker(root, "rmi", "mine:2").stderr
    docker(root, "rm", "user")
    assert docker(root, "rmi", "-f", "ubuntu").returncode == 0
    assert docker(root, "images", "-q").stdout == ""


def test_the_daemon_tells_its_version(images: Path) -> None:
    assert docker(images, "version", "--format", "{{.Server.Version}}").stdout == "28.5.1\n"
    assert docker(images, "--version").stdout.startswith("Docker version 28.5.1")
    assert "nvidia" in json.loads(docker(images, "info", "--format", "{{json .Runtimes}}").stdout)


def test_on_the_machine_itself_pip_installs_only_into_a_folder(root: Path) -> None:
    assert "externally-managed-environment" in run(root, "pip", "install", "huggingface_hub==1.3.0").stderr
    tools = root / "work" / "tools"
    assert run(root, "pip", "install", "--quiet", "--target", str(tools), "huggingface_hub==1.3.0").returncode == 0
    assert "No module named 'huggingface_hub'" in run(root, str(tools / "bin/hf"), "version").stderr
    assert run(root, str(tools / "bin/hf"), "version", env={"PYTHONPATH": str(tools)}).stdout == "1.3.0\n"

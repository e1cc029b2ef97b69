"""The programs a twin node has on its PATH: what they print, refuse, and how faults show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.twin import checkpoint
from tests.twin.nodes import docker, end_all, eventually, make_root, run

MODEL = "zai-org/GLM-5.1-FP8"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    folder = make_root(tmp_path / "root")
    yield folder
    end_all(folder)


def ask(tmp_path: Path, *argv: str, **facts: Any) -> tuple[int, str]:
    """Exit status and output of a program on a node with these facts."""
    done = run(make_root(tmp_path / "root", **facts), *argv)
    return done.returncode, done.stdout + done.stderr


def smi(tmp_path: Path, fields: str, shape: str = "csv,noheader", **facts: Any) -> list[str]:
    return ask(tmp_path, "nvidia-smi", f"--query-gpu={fields}", f"--format={shape}", **facts)[1].splitlines()


def test_gpus_are_listed_by_name(tmp_path: Path) -> None:
    assert smi(tmp_path, "name") == ["NVIDIA B200"] * 8
    assert smi(tmp_path, "name,compute_cap", gpu_model="H200", gpu_count=4) == ["NVIDIA H200, 9.0"] * 4


def test_a_query_has_a_header_and_units_unless_told_otherwise(tmp_path: Path) -> None:
    fields = "index,memory.total,driver_version"
    assert smi(tmp_path, fields, "csv")[:2] == ["index, memory.total [MiB], driver_version", "0, 183359 MiB, 595.45.04"]
    assert smi(tmp_path, fields, "csv,noheader,nounits")[0] == "0, 183359, 595.45.04"


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    status, text = ask(tmp_path, "nvidia-smi", "--query-gpu=name,colour", "--format=csv")
    assert (status, text.strip()) == (2, 'Field "colour" is not a valid field to query.')


def test_a_query_without_a_format_is_refused(tmp_path: Path) -> None:
    assert ask(tmp_path, "nvidia-smi", "--query-gpu=name")[0] == 1


def test_the_long_form_tells_the_state_of_the_fabric(tmp_path: Path) -> None:
    def states(**facts: Any) -> set[str]:
        lines = ask(tmp_path, "nvidia-smi", "-q", **facts)[1].splitlines()
        return {lines[i + 1].split(":")[1].strip() for i, line in enumerate(lines) if line.strip() == "Fabric"}

    assert states() == {"Completed"}
    assert states(faults=["fabric-in-progress"]) == {"In Progress"}


def test_the_table_names_driver_and_cuda(tmp_path: Path) -> None:
    text = ask(tmp_path, "nvidia-smi", driver="580.159.04")[1]
    assert "Driver Version: 580.159.04" in text and "CUDA Version: 13.0" in text
    assert len({len(line) for line in text.splitlines() if line.startswith(("|", "+"))}) == 1


@pytest.mark.parametrize(
    ("facts", "argv", "status", "words"),
    [
        ({"gpu_count_visible": 7}, ["nvidia-smi", "-L"], 0, "GPU 6:"),
        ({"faults": ["bad-gpu"]}, ["nvidia-smi", "-L"], 0, "GPU 6:"),
        ({"faults": ["bad-gpu:handle"]}, ["nvidia-smi", "-L"], 255, "Unable to determine the device handle for GPU7"),
        ({"faults": ["no-driver"]}, ["nvidia-smi"], 9, "couldn't communicate with the NVIDIA driver"),
        ({"faults": ["old-driver"]}, ["nvidia-smi"], 0, "Driver Version: 570."),
        ({"gpu_count": 0}, ["nvidia-smi"], 127, "nvidia-smi"),
        ({}, ["ibstat", "-l"], 0, "mlx5_7"),
        ({}, ["ibstat"], 0, "State: Active"),
        ({"faults": ["rdma-down"]}, ["ibstat"], 0, "State: Down"),
        ({"rdma": None}, ["ibstat"], 255, "No such file or directory"),
        ({"rdma": {"devices": 2}}, ["ibv_devinfo", "-l"], 0, "2 HCAs found"),
        ({}, ["free", "--frob"], 1, "unrecognized option"),
    ],
)
def test_faults_and_facts_show(tmp_path: Path, facts: dict[str, Any], argv: list[str], status: int, words: str) -> None:
    assert ask(tmp_path, *argv, **facts)[0] == status
    assert words in ask(tmp_path, *argv, **facts)[1]


def test_one_gpu_fewer_is_listed_on_a_broken_machine(tmp_path: Path) -> None:
    assert len(smi(tmp_path, "name", faults=["bad-gpu"])) == 7


def test_memory_is_the_nodes(tmp_path: Path) -> None:
    lines = ask(tmp_path, "free", "-g", ram_gb=1500)[1].splitlines()
    assert lines[0].split()[0] == "total" and lines[1].split()[:2] == ["Mem:", "1500"]
    assert int(ask(tmp_path, "free", "-b", ram_gb=1500)[1].splitlines()[1].split()[1]) == 1500 << 30


def test_the_disk_is_the_nodes_and_fills_with_weights(root: Path) -> None:
    def avail() -> int:
        return int(run(root, "df", "-B1", "--output=avail", str(root / "work")).stdout.splitlines()[1])

    before = avail()
    assert 7.9e12 < before <= 8e12
    run(root, "hf", "download", MODEL, "--local-dir", str(root / "work/m"))
    assert before - avail() == pytest.approx(756e9, rel=0.001)


def test_every_spelling_of_df_agrees(root: Path) -> None:
    work = str(root / "work")
    kilobytes = int(run(root, "df", "-Pk", work).stdout.splitlines()[1].split()[3])
    assert int(run(root, "df", "-k", "--output=avail", work).stdout.split()[1]) == kilobytes
    assert int(run(root, "df", "-B", "1", "--output=avail", work).stdout.split()[1]) // 1024 == kilobytes
    assert run(root, "df", "-BG", "--output=avail", work).stdout.split()[1] == f"{kilobytes * 1024 >> 30}G"
    assert run(root, "df", "-i", work).stdout.startswith("Filesystem")
    assert "No such file" in run(root, "df", "-k", "/no/such/path").stderr


def test_a_download_is_a_whole_checkpoint(root: Path) -> None:
    model = root / "work" / "m"
    done = run(root, "hf", "download", MODEL, "--revision", "main", "--local-dir", str(model), "--max-workers", "8")
    assert (done.returncode, done.stdout) == (0, f"{model}\n")
    assert "100%" in done.stderr
    index = json.loads((model / "model.safetensors.index.json").read_text())
    for file in set(index["weight_map"].values()):
        held = set(checkpoint.read_names(model / file))
        assert held == {name for name, place in index["weight_map"].items() if place == file}
    assert {"config.json", "tokenizer.json", "chat_template.jinja"} <= {path.name for path in model.iterdir()}
    assert run(root, "hf", "download", MODEL, "--local-dir", str(model), "--quiet").stderr == ""


def test_a_killed_download_goes_on_with_the_next_file(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root", time_scale=300)  # a file takes 0.2 s
    model = root / "work" / "m"
    first = subprocess.Popen(
        [root / "bin/hf", "download", MODEL, "--local-dir", model, "--quiet"], stdout=subprocess.PIPE
    )
    eventually(lambda: len(list(model.glob("*.safetensors"))) >= 2, "two files")
    first.kill()
    first.communicate()
    kept = {path.name: path.stat().st_mtime_ns for path in model.glob("*.safetensors")}
    assert run(root, "hf", "download", MODEL, "--local-dir", str(model)).returncode == 0
    assert all((model / name).stat().st_mtime_ns == time for name, time in kept.items())
    assert len(list(model.glob("*.safetensors"))) == 12


@pytest.mark.parametrize(
    ("facts", "argv", "words"),
    [
        ({}, ["no/such"], "Repository Not Found"),
        ({}, [MODEL, "--revision", "v9"], "Revision Not Found"),
        ({"faults": ["gated"]}, [MODEL], "gated repo"),
        ({"disk_gb": 200}, [MODEL], "No space left on device"),
        ({}, [MODEL, "--frob"], "unrecognized arguments: --frob"),
    ],
)
def test_a_download_that_cannot_work_says_why(
    tmp_path: Path, facts: dict[str, Any], argv: list[str], words: str
) -> None:
    status, text = ask(tmp_path, "hf", "download", *argv, "--local-dir", str(tmp_path / "root/work/m"), **facts)
    assert status != 0 and words in text


def test_a_token_opens_a_gated_repository(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root", faults=["gated"])
    done = run(root, "hf", "download", MODEL, "--local-dir", str(tmp_path / "m"), env={"HF_TOKEN": "hf_x"})
    assert done.returncode == 0


class Converter:
    """A node with a checkpoint and an image that has the converter."""

    def __init__(self, root: Path) -> None:
        self.root, self.model, self.out = root, root / "work" / "m", root / "work" / "out"
        run(root, "hf", "download", MODEL, "--local-dir", str(self.model), "--quiet")
        recipe = "FROM ghcr.io/tile-ai/tilert:cu132-latest\nENV PATH=/opt/conda/envs/tilert/bin:$PATH\n"
        docker(root, "build", "-t", "conv", "-", stdin=f"{recipe}RUN pip install --no-deps tilert==0.1.6.post3\n")

    def run(
        self, *more: str, mounts: tuple[str, ...] = (), model_type: str = "glm-5"
    ) -> subprocess.CompletedProcess[str]:
        flags = [
            word
            for mount in mounts or (str(self.root / "work"),)
            for word in ("-v", f"{mount}:{mount}".replace(":ro:", ":"))
        ]
        command = ["python", "-m", "tilert.models.preprocess.weight_converter", "--model_type", model_type]
        command += ["--model_dir", str(self.model), "--save_dir", str(self.out), *more]
        return docker(self.root, "run", "--rm", *flags, "conv", *command)


@pytest.fixture
def converter(root: Path) -> Converter:
    return Converter(root)


def test_a_conversion_has_every_layer_for_every_device(converter: Converter) -> None:
    done = converter.run()
    assert done.returncode == 0, done.stderr
    assert "Converting weight layer 79 / 79" in done.stderr
    index = json.loads((converter.out / checkpoint.INDEX).read_text())
    files = sorted(path.name for path in converter.out.glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values())) and files[0].endswith("-of-00017.safetensors")
    layers = {(key.split("_")[1], key[-5:]) for key in index["weight_map"] if "_dev_" in key}
    assert layers == {(str(layer), f"dev_{device}") for layer in range(79) for device in range(8)}
    assert all(f"layer_78_{name}_dev_7" in index["weight_map"] for name in ("eh_proj_weights", "lm_head.weight"))
    assert checkpoint.read_names(converter.out / files[0]) == ["model.embed_tokens.weight"]
    sizes = sum(4 * len(checkpoint.read_names(converter.out / file)) for file in files)
    assert index["metadata"]["total_size"] == sizes
    assert not (converter.out / "tokenizer.json").exists()


def test_a_test_run_converts_three_layers(converter: Converter) -> None:
    assert converter.run("--test_mode").stderr.count("Skipping layer") == 76


def test_a_machine_with_too_little_memory_kills_the_conversion(converter: Converter) -> None:
    facts = json.loads((converter.root / "node.json").read_text())
    (converter.root / "node.json").write_text(json.dumps(facts | {"ram_gb": 512}))
    assert converter.run().returncode == 137
    assert not (converter.out / checkpoint.INDEX).exists()


def test_a_killed_conversion_leaves_shards_with_a_wrong_total_and_no_index(converter: Converter) -> None:
    facts = json.loads((converter.root / "node.json").read_text())
    (converter.root / "node.json").write_text(json.dumps(facts | {"time_scale": 4000}))  # 0.05 s a shard
    (converter.root / "work").joinpath("out").mkdir()
    job = subprocess.Popen(
        [
            converter.root / "bin/docker", "run", "--rm", "--name", "job",
            "-v", f"{converter.root}/work:{converter.root}/work", "conv",
            "python", "-m", "tilert.models.preprocess.weight_converter", "--model_type", "glm-5",
            "--model_dir", converter.model, "--save_dir", converter.out,
        ],
        stderr=subprocess.PIPE,
    )  # fmt: skip
    eventually(lambda: len(list(converter.out.glob("*.safetensors"))) >= 2, "two shards")
    docker(converter.root, "kill", "job")
    job.communicate()
    assert job.returncode == 128 + signal.SIGKILL
    assert all(path.name.endswith("-of-00008.safetensors") for path in converter.out.glob("*.safetensors"))
    assert not (converter.out / checkpoint.INDEX).exists()


def test_a_conversion_sees_only_what_is_mounted(converter: Converter) -> None:
    converter.out.mkdir()
    assert f"Model directory {converter.model} does not exist" in converter.run(mounts=(str(converter.out),)).stderr
    assert converter.run(mounts=(str(converter.model),)).returncode == 0
    assert list(converter.out.iterdir()) == []


@pytest.mark.parametrize(("model_type", "words"), [("glm5", "Invalid model type: glm5")])
def test_an_unknown_model_type_is_refused(converter: Converter, model_type: str, words: str) -> None:
    assert words in converter.run(model_type=model_type).stderr


def test_a_damaged_checkpoint_is_noticed(converter: Converter) -> None:
    shard = sorted(converter.model.glob("*.safetensors"))[3]
    os.truncate(shard, shard.stat().st_size - 1)
    assert "MetadataIncompleteBuffer" in converter.run().stderr
    shard.unlink()
    assert "No such file or directory" in converter.run().stderr
    (converter.model / checkpoint.INDEX).unlink()
    assert "Index file model.safetensors.index.json not found" in converter.run().stderr

"""Stand-in for Hugging Face's ``hf``: downloads a checkpoint file by file, and goes on where it was killed."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import sys
from pathlib import Path

from gpufleet.twin import checkpoint, nodefile
from gpufleet.twin.tools.mounts import visible

URL = "https://huggingface.co/api/models"
SMALL_FILES = {
    "config.json": {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "num_hidden_layers": 78,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 202752,
        "n_routed_experts": 256,
        "vocab_size": 154880,
        "torch_dtype": "bfloat16",
    },
    "generation_config.json": {"eos_token_id": [154820, 154827, 154829], "temperature": 1.0, "top_p": 0.95},
    "tokenizer.json": {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}},
    "tokenizer_config.json": {"tokenizer_class": "TokenizersBackend", "model_max_length": 202752},
}
CHAT_TEMPLATE = "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"


def main(argv: list[str]) -> int:
    """Run ``hf download`` or ``hf version``."""
    if argv in (["--version"], ["version"]):
        print("1.3.0")
        return 0
    parser = argparse.ArgumentParser(prog="hf", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    download = commands.add_parser("download", allow_abbrev=False)
    download.add_argument("repo_id")
    for flag in ("--revision", "--local-dir", "--token", "--cache-dir", "--repo-type", "--max-workers"):
        download.add_argument(flag)
    download.add_argument("--quiet", action="store_true")
    options = parser.parse_args(argv)
    return _download(nodefile.load(), options)


def _download(node: nodefile.Node, options: argparse.Namespace) -> int:
    repo, revision = options.repo_id, options.revision or "main"
    problem = _refusal(node, repo, revision, options.token)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    commit = revision if len(revision) == 40 else hashlib.sha1(repo.encode(), usedforsecurity=False).hexdigest()
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    folder = Path(options.local_dir or cache / "hub" / f"models--{repo.replace('/', '--')}" / "snapshots" / commit)
    if not visible(str(folder)):
        folder = Path(os.environ["TWIN_LAYER"]) / "lost" / folder.name
    state = folder / ".cache" / "huggingface" / "download"
    state.mkdir(parents=True, exist_ok=True)
    with (state.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _fetch_all(node, repo, folder, state, commit, quiet=options.quiet):
            print("OSError: [Errno 28] No space left on device", file=sys.stderr)
            return 1
    print(folder.absolute())
    return 0


def _refusal(node: nodefile.Node, repo: str, revision: str, token: str | None) -> str:
    where = f"for url: {URL}/{repo}/revision/{revision}."
    if repo not in checkpoint.CHECKPOINT_BYTES or node.fault("hf-missing") is not None:
        return (
            f"Error: Repository Not Found {where}\n"
            "Please make sure you specified the correct `repo_id` and `repo_type`.\n"
            "If you are trying to access a private or gated repo, make sure you are authenticated."
        )
    if revision != "main" and not (len(revision) == 40 and set(revision) <= set("0123456789abcdef")):
        return f"Error: Revision Not Found {where}\nInvalid rev id: {revision}"
    if node.fault("gated") is not None and not (token or os.environ.get("HF_TOKEN")):
        restricted = f"Access to model {repo} is restricted. Please log in."
        return f"Error: Access denied. Cannot access gated repo {where}\n{restricted}"
    return ""


def _fetch_all(node: nodefile.Node, repo: str, folder: Path, state: Path, commit: str, *, quiet: bool) -> bool:
    """Bring every file that is not there yet; false when the disk is full."""
    names = checkpoint.tensor_names(fp8=repo.endswith(("FP8", "V3.2")))
    count = checkpoint.shards(node)
    size = checkpoint.CHECKPOINT_BYTES[repo] / count
    files = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    total = len(files) + len(SMALL_FILES) + 2
    _fetch_small(folder, state, commit, names, files)
    for done, (file, tensors) in enumerate(zip(files, checkpoint.split(names, count), strict=True)):
        if not quiet:
            _show(len(SMALL_FILES) + 2 + done, total)
        if (folder / file).exists():
            continue
        if checkpoint.free_bytes(node) < size:
            return False
        (state / f"{file}.incomplete").touch()
        node.pause(size * 8 / 1e9 / node.pace["download_gbps"])
        checkpoint.write_safetensors(folder / file, tensors)
        _note(state, file, commit)
    if not quiet:
        _show(total, total)
        print(file=sys.stderr)
    return True


def _fetch_small(folder: Path, state: Path, commit: str, names: list[str], files: list[str]) -> None:
    parts = zip(files, checkpoint.split(names, len(files)), strict=True)
    index = {
        "metadata": {"total_size": checkpoint.DATA * len(names)},
        "weight_map": {name: file for file, tensors in parts for name in tensors},
    }
    texts = {name: json.dumps(content, indent=2) for name, content in SMALL_FILES.items()}
    texts |= {checkpoint.INDEX: json.dumps(index, indent=2), "chat_template.jinja": CHAT_TEMPLATE}
    for name, text in texts.items():
        if not (folder / name).exists():
            part = state / f"{name}.incomplete"
            part.write_text(text)
            part.replace(folder / name)
            _note(state, name, commit)


def _note(state: Path, file: str, commit: str) -> None:
    (state / f"{file}.incomplete").unlink(missing_ok=True)
    etag = hashlib.sha256(file.encode()).hexdigest()
    (state / f"{file}.metadata").write_text(f"{commit}\n{etag}\n0.0\n")


def _show(done: int, total: int) -> None:
    bar = "█" * (10 * done // total)
    print(
        f"\rFetching {total} files: {100 * done // total:3d}%|{bar:<10}| {done}/{total}",
        end="",
        file=sys.stderr,
        flush=True,
    )

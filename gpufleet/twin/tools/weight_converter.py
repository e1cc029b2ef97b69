"""Stand-in for ``tilert.models.preprocess.weight_converter``, release 0.1.6.post3.

As there: the whole checkpoint goes through RAM, shards carry a wrong total in their names until the end, the index
is written last, nothing is resumed, and tokenizer files are not copied.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from gpufleet.twin import checkpoint, nodefile
from gpufleet.twin.tools.mounts import read_only, visible

MODELS = ("deepseek-v32", "glm-5")
DEVICES = 8
DENSE_LAYERS = 3
RAM_GB = 900
"""Below this the kernel ends the process: the converted set is held in memory."""
ATTENTION = ("wqkv_a", "wqkv_a_scales", "wq_b", "wo", "kv_norm")
SPARSE_ATTENTION = (*ATTENTION, "idx_wk", "idx_k_norm")
DENSE = ("unproj_o_gamma", "gate_weights", "up_weights", "down_weights")
EXPERTS = ("unproj_o_gamma", "exp_proj_weights", "exp_gate_weights", "exp_up_weights", "exp_down_weights")
MTP = ("embedding_rmsnorm_gamma", "hidden_rmsnorm_gamma", "eh_proj_weights", "lm_head.weight", "model.norm.weight")


def main(argv: list[str]) -> int:
    """Convert a checkpoint into TileRT's own layout."""
    parser = argparse.ArgumentParser(prog="weight_converter.py")
    parser.add_argument("--model_type", type=str, required=True)
    parser.add_argument("--model_dir", type=str, required=True)
    parser.add_argument("--save_dir", type=str, required=True)
    parser.add_argument("--test_mode", action="store_true")
    parser.add_argument("--append_mtp", action="store_true")
    options = parser.parse_args(argv)
    if options.model_type not in MODELS:
        return _traceback(f"ValueError: Invalid model type: {options.model_type}")
    model, save = Path(options.model_dir), Path(options.save_dir)
    if not visible(str(model)) or not model.exists():
        return _traceback(f"ValueError: Model directory {model} does not exist")
    if not (model / checkpoint.INDEX).exists():
        return _traceback(f"ValueError: Index file {checkpoint.INDEX} not found in {model}")
    if read_only(str(save)):
        return _traceback(f"OSError: [Errno 30] Read-only file system: '{save}'")
    if not visible(str(save)):
        save = Path(os.environ["TWIN_LAYER"]) / "lost" / save.name  # vanishes with the container, as in a real one
    save.mkdir(parents=True, exist_ok=True)
    if options.append_mtp:
        return _append_mtp(save)
    return _convert(nodefile.load(), model, save, test_mode=options.test_mode)


def _convert(node: nodefile.Node, model: Path, save: Path, *, test_mode: bool) -> int:
    weight_map: dict[str, str] = json.loads((model / checkpoint.INDEX).read_text())["weight_map"]
    layers = [0, DENSE_LAYERS, checkpoint.LAYERS - 1] if test_mode else list(range(checkpoint.LAYERS))
    out_of_memory = float(node.facts["ram_gb"]) < RAM_GB or node.fault("convert-oom") is not None
    for layer in range(checkpoint.LAYERS):
        if layer not in layers:
            _log(f"Skipping layer {layer + 1} / {checkpoint.LAYERS}")
            continue
        _log(f"Converting weight layer {layer + 1} / {checkpoint.LAYERS}")
        problem = _load_layer(model, weight_map, layer)
        if problem:
            return _traceback(problem)
        node.pause(node.pace["convert_seconds"] * 0.9 / checkpoint.LAYERS)
        if out_of_memory and layer >= len(layers) // 4:
            os.kill(os.getpid(), signal.SIGKILL)
    for name in ("lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"):
        if name not in weight_map:
            return _traceback(f"KeyError: '{name}'")
    return _save(node, save, layers)


def _load_layer(model: Path, weight_map: dict[str, str], layer: int) -> str:
    """Read the layer's files; returns what is wrong with them."""
    prefix = f"model.layers.{layer}."
    files = sorted({file for name, file in weight_map.items() if name.startswith(prefix)})
    if not files:
        return f"KeyError: 'layer_{layer}'"
    names: set[str] = set()
    for file in files:
        _log(f"Loading weight from {file}")
        try:
            names |= set(checkpoint.read_names(model / file))
        except FileNotFoundError:
            return f"FileNotFoundError: No such file or directory: {model / file}"
        except ValueError as problem:
            return f"safetensors_rust.SafetensorError: {problem}"
    needed = f"{prefix}self_attn.o_proj.weight_scale_inv"
    return "" if needed in names else f"KeyError: '{needed}'"


def _save(node: nodefile.Node, save: Path, layers: list[int]) -> int:
    _log("Saving to safetensors format with max shard size 5GB...")
    groups = [["model.embed_tokens.weight"]]
    for device in range(DEVICES):
        keys = [f"layer_{layer}_{name}_dev_{device}" for layer in layers for name in _params(layer, device)]
        groups += list(checkpoint.split(keys, (checkpoint.CONVERTED_FILES - 1) // DEVICES))
    total = 0
    for number, keys in enumerate(groups, 1):
        if checkpoint.free_bytes(node) < checkpoint.CONVERTED_BYTES / len(groups):
            return _traceback(
                "safetensors_rust.SafetensorError: Error while serializing: IoError(No space left on device)"
            )
        node.pause(node.pace["convert_seconds"] * 0.1 / len(groups))
        _log(f"Saving shard {number} to {_shard(save, number, DEVICES)}")
        total += checkpoint.write_safetensors(_shard(save, number, DEVICES), keys)
    for number in range(1, len(groups) + 1):
        _shard(save, number, DEVICES).rename(_shard(save, number, len(groups)))
    weight_map = {key: _shard(save, number, len(groups)).name for number, keys in enumerate(groups, 1) for key in keys}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (save / checkpoint.INDEX).write_text(json.dumps(index, indent=2))
    _log(f"Saved {len(groups)} shard(s) with max size 5GB")
    _log(f"Index file: {save / checkpoint.INDEX}")
    return 0


def _params(layer: int, device: int) -> tuple[str, ...]:
    """Device 0 alone holds the sparse attention's index weights."""
    attention = SPARSE_ATTENTION if device == 0 else ATTENTION
    feed_forward = DENSE if layer < DENSE_LAYERS else EXPERTS
    return (*attention, *feed_forward, *(MTP if layer == checkpoint.LAYERS - 1 else ()))


def _shard(save: Path, number: int, total: int) -> Path:
    return save / f"model.safetensors-{number:05d}-of-{total:05d}.safetensors"


def _append_mtp(save: Path) -> int:
    if not (save / checkpoint.INDEX).exists():
        return _traceback(f"ValueError: Existing index file not found: {save / checkpoint.INDEX}")
    return _traceback("KeyError: 'layer_61'")


def _log(message: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} [INFO] tilert: {message}", file=sys.stderr, flush=True)


def _traceback(message: str) -> int:
    print(f"Traceback (most recent call last):\n{message}", file=sys.stderr)
    return 1

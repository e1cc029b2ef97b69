"""Whether TileRT's converter finished its work: ``converted.py DIR --layers 79 --devices 8``. Standard library only.

The converter exits without looking at what it wrote, and TileRT's loader looks at nothing either.
"""

import argparse
import re
import sys
from pathlib import Path

from checkpoint import Broken, check, index

KEY = re.compile(r"layer_(\d+)_(.+)_dev_(\d+)")
SHARD = re.compile(r"model\.safetensors-(\d+)-of-(\d+)\.safetensors")
MTP = ("embedding_rmsnorm_gamma", "hidden_rmsnorm_gamma", "eh_proj_weights", "lm_head.weight", "model.norm.weight")
"""What the last layer (multi-token prediction) has on every device, beside what the others have."""


def check_shards(folder, files):
    """No file too many, and as many as their names say: left-overs of a broken run have another number."""
    present = {path.name for path in folder.glob("*.safetensors")}
    extra = present - files.keys()
    if extra:
        raise Broken(f"{min(extra)} is not in the index")
    for name in sorted(files):
        match = SHARD.fullmatch(name)
        if not match or int(match[2]) != len(files):
            raise Broken(f"{name} among {len(files)} files: the converter renames them when it is done")


def check_sizes(folder, files):
    """The tensors add up to what the index claims; files that two runs mixed would not."""
    _, claimed = index(folder)
    total = sum(sum(sizes.values()) for sizes in files.values())
    if claimed is None or abs(total - claimed) > claimed / 100:
        raise Broken(f"the tensors have {total} bytes, the index says {claimed}")


def check_layers(files, layers, devices):
    """Every layer is there on every device, with the same tensors on all devices but the first.

    Device 0 alone holds the weights of the sparse attention's index.
    """
    params = {}
    for names in files.values():
        for name in names:
            match = KEY.fullmatch(name)
            if match:
                params.setdefault((int(match[1]), int(match[3])), set()).add(match[2])
    for layer in range(layers):
        for device in range(devices):
            here = params.get((layer, device))
            if not here:
                raise Broken(f"layer {layer} has no tensor for device {device}")
            if device > 1 and here != params[layer, 1]:
                differs = min(here ^ params[layer, 1])
                raise Broken(f"layer {layer}: devices 1 and {device} differ in {differs}")
    for device in range(devices):
        lacking = set(MTP) - params[layers - 1, device]
        if lacking:
            raise Broken(f"layer {layers - 1} lacks {min(lacking)} for device {device}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--devices", type=int, required=True)
    options = parser.parse_args()
    try:
        files = check(options.folder)
        check_shards(options.folder, files)
        check_sizes(options.folder, files)
        check_layers(files, options.layers, options.devices)
    except Broken as problem:
        print(problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Whether a directory of safetensors files is whole: ``checkpoint.py whole DIR``. Standard library only.

Prints the first thing that is wrong, on one line, and exits with 1. Only headers are read, so it takes a second.
"""

import json
import sys
from pathlib import Path

INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000


class Broken(Exception):
    """What is wrong with the files."""


def tensors(path):
    """Names and byte sizes of a safetensors file's tensors; the header must account for every byte of the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise Broken(f"{path.name} is cut short: {size} bytes")
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise Broken(f"{path.name} has a broken header") from None
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if 8 + length + end != size:
        raise Broken(f"{path.name} has {size} bytes, its header says {8 + length + end}")
    return {name: entry["data_offsets"][1] - entry["data_offsets"][0] for name, entry in header.items()}


def index(folder):
    """The index file: which tensor is in which file, and the total size that it claims (None when it does not)."""
    try:
        content = json.loads((folder / INDEX).read_text())
        return content["weight_map"], content.get("metadata", {}).get("total_size")
    except FileNotFoundError:
        raise Broken(f"{folder} has no {INDEX}") from None
    except (ValueError, KeyError):
        raise Broken(f"{folder / INDEX} is not a safetensors index") from None


def check(folder):
    """Every file of the index is there and whole, and holds the tensors that the index says.

    Returns the tensors per file.
    """
    weight_map, _ = index(folder)
    wanted = {}
    for name, file in weight_map.items():
        wanted.setdefault(file, set()).add(name)
    found = {}
    for file, names in sorted(wanted.items()):
        if not (folder / file).is_file():
            raise Broken(f"{file} is missing ({len(wanted)} files in the index)")
        found[file] = tensors(folder / file)
        lacking = names - found[file].keys()
        if lacking:
            raise Broken(f"{file} lacks {min(lacking)}")
    return found


def main():
    try:
        check(Path(sys.argv[2]))
    except Broken as problem:
        print(problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

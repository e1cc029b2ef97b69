"""The list of a weights directory's files with sizes and hashes. Standard library only.

manifest.py write DIR KEY=VALUE...   write DIR/manifest.json; everything is on the disk when this returns
manifest.py holds DIR KEY=VALUE...   exit 0 if every file is there in its size and the facts are these
manifest.py is DIR KEY=VALUE...      exit 0 if the facts are these, whatever is there
manifest.py check DIR                compare every hash; a file that differs is removed
manifest.py compare DIR              compare every hash; changes nothing
manifest.py names DIR                print the names of all files
manifest.py missing DIR              print the names of files that are not there in full
manifest.py percent DIR              print how much of the bytes is there
"""

import hashlib
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAME = "manifest.json"
SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
BLOCK = 1 << 22
THREADS = 8


def sha256(path, *, sync=False):
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
        if sync:
            os.fsync(file.fileno())
    return digest.hexdigest()


def sync_folder(folder):
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write(folder, facts):
    paths = sorted(p for p in folder.iterdir() if p.is_file() and p.name != NAME and not p.name.startswith("."))
    unsafe = [p.name for p in paths if not SAFE.fullmatch(p.name)]
    if unsafe:
        raise SystemExit(f"a file name that cannot be passed on: {unsafe[0]!r}")
    with ThreadPoolExecutor(THREADS) as pool:
        hashes = list(pool.map(lambda p: sha256(p, sync=True), paths))
    files = {p.name: {"size": p.stat().st_size, "sha256": h} for p, h in zip(paths, hashes, strict=True)}
    fresh = folder / f".{NAME}"
    with fresh.open("w") as file:
        json.dump({"facts": facts, "files": files}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / NAME)
    sync_folder(folder)


def read(folder):
    try:
        manifest = json.loads((folder / NAME).read_text())
        files = manifest["files"]
    except (OSError, ValueError, KeyError) as problem:
        raise SystemExit(f"{folder} has no usable {NAME}: {problem}") from None
    unsafe = [name for name in files if not SAFE.fullmatch(name)]
    if unsafe or not files:
        raise SystemExit(f"{folder / NAME} lists {unsafe[0]!r}" if unsafe else f"{folder / NAME} lists nothing")
    return manifest.get("facts"), files


def size(path):
    try:
        return path.stat().st_size
    except OSError:
        return -1


def missing(folder):
    """Files that are not there in their size; one that is too large is a left-over and is removed."""
    _, files = read(folder)
    for name, entry in files.items():
        if size(folder / name) > entry["size"]:
            (folder / name).unlink()
    return [name for name, entry in files.items() if size(folder / name) != entry["size"]]


def check_facts(folder, facts):
    said, _ = read(folder)
    if said != facts:
        raise SystemExit(f"{folder} is of {said}, not {facts}")


def holds(folder, facts):
    if facts:
        check_facts(folder, facts)
    _, files = read(folder)
    wrong = [name for name, entry in files.items() if size(folder / name) != entry["size"]]
    if wrong:
        raise SystemExit(f"{folder / wrong[0]} is not {files[wrong[0]]['size']} bytes")


def damaged(folder, *, sync):
    """Files whose bytes are not those of the manifest, and how many there are in all."""
    _, files = read(folder)
    with ThreadPoolExecutor(THREADS) as pool:
        hashes = dict(zip(files, pool.map(lambda name: sha256(folder / name, sync=sync), files), strict=True))
    return [name for name, entry in files.items() if hashes[name] != entry["sha256"]], len(files)


def check(folder):
    wrong, total = damaged(folder, sync=True)
    for name in wrong:
        (folder / name).unlink()
    if wrong:
        raise SystemExit(f"{wrong[0]} was damaged on the way ({len(wrong)} of {total} files)")
    sync_folder(folder)


def compare(folder):
    wrong, total = damaged(folder, sync=False)
    if wrong:
        raise SystemExit(f"{folder / wrong[0]} is not what the manifest says ({len(wrong)} of {total} files)")


def percent(folder):
    _, files = read(folder)
    total = sum(entry["size"] for entry in files.values())
    have = sum(max(0, size(folder / name)) for name in files)
    unit, size_of_one = ("GB", 1e9) if total >= 1e9 else ("MB", 1e6)
    told = f"{have / size_of_one:.0f} of {total / size_of_one:.0f} {unit}" if total >= 1e6 else ""
    return f"{min(99.9, 100 * have / max(1, total)):.1f} {told}".rstrip()


def main():
    command, folder, facts = sys.argv[1], Path(sys.argv[2]), dict(a.split("=", 1) for a in sys.argv[3:])
    if command == "write":
        write(folder, facts)
    elif command == "holds":
        holds(folder, facts)
    elif command == "is":
        check_facts(folder, facts)
    elif command == "check":
        check(folder)
    elif command == "compare":
        compare(folder)
    elif command == "names":
        print("\n".join(read(folder)[1]))
    elif command == "missing":
        print("\n".join(missing(folder)))
    elif command == "percent":
        print(percent(folder))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()

"""Stand-in for ``nvidia-smi``: the node's GPUs in the forms that scripts read.

Format after an H200 machine's own output, driver 580.
"""

from __future__ import annotations

import os
import time

from gpufleet.twin import nodefile

CHIPS = {
    "B300": ("Blackwell", "10.3"),
    "B200": ("Blackwell", "10.0"),
    "H200": ("Hopper", "9.0"),
    "H100": ("Hopper", "9.0"),
    "A100": ("Ampere", "8.0"),
    "L40S": ("Ada Lovelace", "8.9"),
}
NAMES = {"H100": "NVIDIA H100 80GB HBM3", "A100": "NVIDIA A100-SXM4-80GB"}
MEMORY_MIB = {"B300": 275040, "B200": 183359, "H200": 143771, "H100": 81559, "A100": 81920, "L40S": 46068}
CUDA = {"595": "13.2", "590": "13.1", "580": "13.0", "575": "12.9", "570": "12.8", "565": "12.7", "560": "12.6"}
UNITS = {"memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB", "power.draw": "W", "utilization.gpu": "%"}
LOST = "Unable to determine the device handle for GPU{index}: {bus}: Unknown Error"


def main(argv: list[str]) -> int:
    """Print the table, ``-L``, ``-q`` or ``--query-gpu=FIELDS --format=csv[,noheader][,nounits]``."""
    node = nodefile.load()
    if node.fault("no-driver") is not None:
        print(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
        )
        print("NVIDIA driver is installed and running.\n")
        return 9
    count = node.gpus_visible
    if "TWIN_CONTAINER" in os.environ and os.environ.get("TWIN_GPUS", "0") == "0":
        count = 0
    if not count:
        print("No devices were found")
        return 6
    gpus = [_gpu(node, index) for index in range(count)]
    return _answer(node, gpus, argv)


def _answer(node: nodefile.Node, gpus: list[dict[str, str]], argv: list[str]) -> int:
    broken = node.fault("bad-gpu") == "handle"
    words = [part for word in argv for part in _split(word)]
    if not words:
        _table(node, gpus)
    elif words in (["-L"], ["--list-gpus"]):
        for gpu in gpus:
            print(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})")
    elif words[0] in ("-q", "--query"):
        _query_all(node, gpus)
    elif words[0] == "--query-gpu":
        return _query(gpus, words) or (_lost(len(gpus)) if broken else 0)
    else:
        print(f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n{' '.join(argv)}")
        return 1
    return _lost(len(gpus)) if broken else 0


def _split(word: str) -> list[str]:
    flag, equals, value = word.partition("=")
    return [flag, value] if equals and flag in ("--query-gpu", "--format", "--id", "-i") else [word]


def _lost(index: int) -> int:
    print(LOST.format(index=index, bus=_bus(index)))
    return 255


def _bus(index: int) -> str:
    return f"00000000:{(0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)[index % 8]:02X}:00.0"


def _gpu(node: nodefile.Node, index: int) -> dict[str, str]:
    model = str(node.facts["gpu_model"])
    total = MEMORY_MIB.get(model, int(float(node.facts["vram_gb"]) * 1000))
    starting = node.fault("fabric-in-progress") is not None
    return {
        "index": str(index),
        "count": str(node.gpus_visible),
        "name": NAMES.get(model, f"NVIDIA {model}"),
        "gpu_name": NAMES.get(model, f"NVIDIA {model}"),
        "uuid": f"GPU-{abs(int(node.facts['seed'])) % 0xFFFFFFFF:08x}-0000-0000-0000-{index:012x}",
        "gpu_uuid": f"GPU-{abs(int(node.facts['seed'])) % 0xFFFFFFFF:08x}-0000-0000-0000-{index:012x}",
        "memory.total": str(total),
        "memory.used": "0",
        "memory.free": str(total - 616),
        "driver_version": node.driver,
        "compute_cap": CHIPS.get(model, ("", "8.0"))[1],
        "pci.bus_id": _bus(index),
        "ecc.errors.uncorrected.volatile.total": "0",
        "ecc.mode.current": "Enabled",
        "fabric.state": "In Progress" if starting else "Completed",
        "fabric.status": "N/A" if starting else "Success",
        "temperature.gpu": "35",
        "power.draw": "118.00",
        "utilization.gpu": "0",
        "mig.mode.current": "Disabled",
        "persistence_mode": "Enabled",
        "serial": f"165{index:010}",
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
    }


def _query(gpus: list[dict[str, str]], words: list[str]) -> int:
    fields = [field.strip() for field in words[1].split(",")] if len(words) > 1 else []
    shape = words[words.index("--format") + 1].split(",") if "--format" in words[:-1] else []
    if "csv" not in shape:
        print(
            '"--format=" option is missing "csv" parameter. Please run \'nvidia-smi -h\' for help.\n'
            if shape
            else '"--query-gpu=" switch also requires "--format=" switch. Please run \'nvidia-smi -h\' for help.\n'
        )
        return 1
    for field in fields:
        if field not in gpus[0]:
            print(f'Field "{field}" is not a valid field to query.\n')
            return 2
    bare = "nounits" in shape
    if "noheader" not in shape:
        print(", ".join(field + (f" [{UNITS[field]}]" if field in UNITS else "") for field in fields))
    for gpu in gpus:
        print(", ".join(gpu[field] + (f" {UNITS[field]}" if field in UNITS and not bare else "") for field in fields))
    return 0


def _cuda(driver: str) -> str:
    return CUDA.get(driver.partition(".")[0], "12.4")


def _table(node: nodefile.Node, gpus: list[dict[str, str]]) -> None:
    driver = node.driver
    rule = "+-----------------------------------------+------------------------+----------------------+"
    full = f"+{'-' * 89}+"
    print(time.strftime("%a %b %d %H:%M:%S %Y       "))
    print(full)
    print(f"| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {_cuda(driver):<8} |")
    print(rule)
    print("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    print("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    print("|                                         |                        |               MIG M. |")
    print(rule.replace("-", "=").replace("+", "|"))
    for gpu in gpus:
        memory = f"0MiB / {gpu['memory.total']}MiB"
        print(f"| {gpu['index']:>3}  {gpu['name']:<25}      On  |   {gpu['pci.bus_id']} Off |                    0 |")
        print(f"| N/A   35C    P0            118W / 1000W | {memory:>22} |      0%      Default |")
        print("|                                         |                        |             Disabled |")
        print(rule)
    print(f"\n{full}\n| Processes:{' ' * 78}|\n|{'=' * 89}|\n|  No running processes found{' ' * 61}|\n{full}")


def _query_all(node: nodefile.Node, gpus: list[dict[str, str]]) -> None:
    print("\n==============NVSMI LOG==============\n")
    print(f"{'Timestamp':<55}: {time.strftime('%a %b %d %H:%M:%S %Y')}")
    print(f"{'Driver Version':<55}: {node.driver}")
    print(f"{'CUDA Version':<55}: {_cuda(node.driver)}\n")
    print(f"{'Attached GPUs':<55}: {len(gpus)}")
    for gpu in gpus:
        print(f"GPU {gpu['pci.bus_id']}")
        for indent, name, value in (
            (4, "Product Name", gpu["name"]),
            (4, "Product Architecture", CHIPS.get(str(node.facts["gpu_model"]), ("N/A", ""))[0]),
            (4, "GPU UUID", gpu["uuid"]),
            (4, "FB Memory Usage", None),
            (8, "Total", f"{gpu['memory.total']} MiB"),
            (8, "Free", f"{gpu['memory.free']} MiB"),
            (4, "Fabric", None),
            (8, "State", gpu["fabric.state"]),
            (8, "Status", gpu["fabric.status"]),
        ):
            label = " " * indent + name
            print(label if value is None else f"{label:<55}: {value}")
        print()

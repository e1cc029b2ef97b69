"""What docker prints about containers and images: ``ps``, ``images``, ``inspect``, ``logs``."""

from __future__ import annotations

import json
import os
import select
import sys
import time

from gpufleet.twin.docker.errors import DockerError
from gpufleet.twin.docker.template import render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpufleet.twin.docker.store import Container, Containers

FOLLOW_SECONDS = 0.1
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def rfc3339(moment: float) -> str:
    """A time as docker writes it; docker's zero for none."""
    if not moment:
        return "0001-01-01T00:00:00Z"
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1e9):09d}Z"


def ago(seconds: float) -> str:
    """``3 minutes``: a length of time in docker's words."""
    if seconds < 1:
        return "Less than a second"
    for size, word in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = int(seconds // size)
            return (
                f"{count} {word}s"
                if count > 1
                else {"second": "1 second", "minute": "About a minute"}.get(word, f"1 {word}")
            )
    return ""


def status_line(state: dict[str, Any]) -> str:
    """``Up 5 seconds``, ``Exited (1) 3 minutes ago``."""
    now = time.time()
    if state["status"] == "running":
        return f"Up {ago(now - state['started'])}"
    if state["status"] == "created":
        return "Created"
    word = "Restarting" if state["status"] == "restarting" else "Exited"
    return f"{word} ({state['exit_code']}) {ago(now - (state.get('finished') or now))} ago"


def container_row(
    container: Container, *, whole: bool = False
) -> tuple[dict[str, Any], dict[str, Callable[[str], str]]]:
    """The fields of one line of ``docker ps``, and ``.Label``."""
    state, config = container.state(), container.config
    labels = config["labels"]
    command = " ".join(config["command"])
    row = {
        "ID": container.id if whole else container.id[:12],
        "Names": container.name,
        "Image": config["image"],
        "Command": json.dumps(command if whole or len(command) <= 20 else f"{command[:19]}…", ensure_ascii=False),
        "CreatedAt": time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC", time.gmtime(config["created"])),
        "RunningFor": f"{ago(time.time() - config['created'])} ago",
        "Status": status_line(state),
        "State": state["status"],
        "Ports": "",
        "Labels": ",".join(f"{key}={value}" for key, value in labels.items()),
        "Mounts": ",".join(config["mounts"]),
        "Networks": config["network"],
        "Size": "0B",
    }
    return row, {"Label": lambda key: str(labels.get(key, ""))}


def matches(container: Container, filters: list[str]) -> bool:
    """Whether a container passes ``--filter``: all kinds must hold, any of one kind.

    Raises:
        DockerError: a filter that docker does not have.
    """
    kinds: dict[str, list[str]] = {}
    for text in filters:
        key, equals, value = text.partition("=")
        if not equals:
            raise DockerError(
                f'invalid argument "{text}" for "-f, --filter" flag: bad format of filter (expected name=value)', 125
            )
        kinds.setdefault(key, []).append(value)
    return all(_matches_kind(container, key, values) for key, values in kinds.items())


def _matches_kind(container: Container, key: str, values: list[str]) -> bool:
    if key == "label":
        labels = container.config["labels"]
        return all(
            labels.get(v.partition("=")[0]) is not None
            and ("=" not in v or labels[v.partition("=")[0]] == v.partition("=")[2])
            for v in values
        )
    if key == "name":
        return any(_name_matches(container.name, value) for value in values)
    if key == "id":
        return any(container.id.startswith(value) for value in values)
    if key == "status":
        return container.state()["status"] in values
    if key == "ancestor":
        return container.config["image"] in values
    if key == "exited":
        return container.state()["status"] == "exited" and str(container.state()["exit_code"]) in values
    raise DockerError(f"Error response from daemon: invalid filter '{key}'")


def _name_matches(name: str, pattern: str) -> bool:
    text = pattern.removeprefix("^").removeprefix("/").removesuffix("$")
    if pattern.startswith("^") and pattern.endswith("$"):
        return name == text
    return name.startswith(text) if pattern.startswith("^") else text in name


def print_table(rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """Columns as wide as their widest cell."""
    widths = {key: max([len(title), *(len(str(row[key])) for row in rows)]) for key, title in columns.items()}
    for row in (columns, *rows):
        print("   ".join(str(row[key]).ljust(widths[key]) for key in columns).rstrip())


def inspect_container(container: Container) -> dict[str, Any]:
    """The document of ``docker inspect``."""
    state, config = container.state(), container.config
    policy, _, most = config["restart"].partition(":")
    running = state["status"] in ("running", "restarting")
    return {
        "Id": container.id,
        "Created": rfc3339(config["created"]),
        "Path": config["command"][0],
        "Args": config["command"][1:],
        "State": {
            "Status": state["status"],
            "Running": running,
            "Paused": False,
            "Restarting": state["status"] == "restarting",
            "OOMKilled": False,
            "Dead": False,
            "Pid": state["pid"],
            "ExitCode": state["exit_code"] if state["status"] != "running" else 0,
            "Error": "",
            "StartedAt": rfc3339(state.get("started", 0)),
            "FinishedAt": rfc3339(state.get("finished", 0)),
        },
        "Image": f"sha256:{config['image_id']}",
        "Name": f"/{container.name}",
        "RestartCount": state["restarts"],
        "LogPath": str(container.folder / "log.jsonl"),
        "HostConfig": {
            "Binds": [f"{m}:{m}{':ro' if m in config['read_only'] else ''}" for m in config["mounts"]],
            "NetworkMode": config["network"],
            "IpcMode": config["ipc"],
            "RestartPolicy": {"Name": policy, "MaximumRetryCount": int(most or 0)},
            "AutoRemove": config["remove"],
        },
        "Mounts": [
            {"Type": "bind", "Source": m, "Destination": m, "RW": m not in config["read_only"]}
            for m in config["mounts"]
        ],
        "Config": {
            "Hostname": container.id[:12],
            "Env": [f"{key}={value}" for key, value in config["user_env"].items()],
            "Cmd": config["command"][len(config["entrypoint"]) :],
            "Image": config["image"],
            "Entrypoint": config["entrypoint"],
            "Labels": config["labels"],
            "WorkingDir": config["workdir"],
        },
    }


def inspect_image(image: dict[str, Any]) -> dict[str, Any]:
    """The document of ``docker image inspect``."""
    return {
        "Id": f"sha256:{image['id']}",
        "RepoTags": image["tags"],
        "RepoDigests": image["digests"],
        "Created": rfc3339(image["created"]),
        "Size": image["size"],
        "Architecture": "amd64",
        "Os": "linux",
        "Config": {
            "Env": [f"{key}={value}" for key, value in image["env"].items()],
            "Cmd": image["cmd"],
            "Entrypoint": image["entrypoint"],
            "Labels": image["labels"],
            "WorkingDir": image["workdir"],
            "User": image["user"],
        },
    }


def print_documents(documents: list[dict[str, Any]], shape: str) -> None:
    """``docker inspect``: a JSON list, or one line per object in the shape asked for."""
    if shape and shape != "json":
        for document in documents:
            print(render(shape, document))
    else:
        print(json.dumps(documents, indent=4))


def print_logs(containers: Containers, container: Container, options: dict[str, Any]) -> None:
    """``docker logs``: stdout to stdout and stderr to stderr; with ``--follow`` until the container ends."""
    path = container.folder / "log.jsonl"
    since = _moment(options["since"])
    if not path.exists():
        path.touch()
    with path.open() as log:
        lines = [line for line in log if line.endswith("\n") and json.loads(line)["time"] >= since]
        tail = options["tail"] if options["tail"] != "all" else ""
        if tail:
            lines = lines[-int(tail) :] if int(tail) > 0 else []
        for line in lines:
            _print_line(line, timestamps=options["timestamps"])
        while options["follow"]:
            ended = not container.running
            for line in log:
                _print_line(line, timestamps=options["timestamps"])
            if ended or containers.find(container.id) is None or _reader_gone():
                return
            time.sleep(FOLLOW_SECONDS)


def _print_line(line: str, *, timestamps: bool) -> None:
    entry = json.loads(line)
    out = sys.stdout if entry["stream"] == "stdout" else sys.stderr
    out.write(f"{rfc3339(entry['time'])} {entry['log']}" if timestamps else entry["log"])
    out.flush()


def _reader_gone() -> bool:
    poll = select.poll()
    poll.register(1, 0)
    return bool(poll.poll(0)) and not os.isatty(1)


def _moment(text: str) -> float:
    """A unix time, an RFC 3339 time or a length of time before now."""
    if not text:
        return 0.0
    if text[-1] in UNITS and text[:-1].replace(".", "").isdecimal():
        return time.time() - float(text[:-1]) * UNITS[text[-1]]
    try:
        return float(text)
    except ValueError:
        from datetime import datetime

        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise DockerError(
                f'invalid value for "since": failed to parse value as time or duration: "{text}"'
            ) from None

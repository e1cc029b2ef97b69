"""A real PostgreSQL server for the length of a test session."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest


def binary(name: str) -> str | None:
    """PostgreSQL keeps its server programs off the PATH on Debian."""
    found = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))]
    return found[-1] if found else shutil.which(name)


def server_user() -> str:
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return getpass.getuser()
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")


@contextmanager
def running_server() -> Iterator[str]:
    """Start a server that listens on a socket in its own folder; yields the URL of its first database."""
    initdb, postgres = binary("initdb"), binary("postgres")
    if initdb is None or postgres is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    user = server_user()
    # Not pytest's own folder: its parents may be closed to the server's user, and socket paths are short.
    folder = Path(tempfile.mkdtemp(prefix="gf-pg-"))
    shutil.chown(folder, user)
    as_user = {"user": user, "cwd": folder} if os.geteuid() == 0 else {"cwd": folder}
    try:
        data = str(folder / "data")
        subprocess.run(
            [initdb, "-D", data, "-U", "gf", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8"],
            check=True,
            capture_output=True,
            **as_user,  # type: ignore[call-overload]
        )
        settings = ["-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off"]
        with subprocess.Popen([postgres, "-D", data, *settings], stderr=subprocess.DEVNULL, **as_user) as server:  # type: ignore[call-overload]
            try:
                wait_until_up(server, folder)
                yield f"postgresql://gf@/postgres?host={folder}"
            finally:
                server.terminate()
                server.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_up(server: subprocess.Popen[bytes], folder: Path) -> None:
    """Poll with psql's own handshake; a server that has died ends the wait."""
    for _ in range(300):
        assert server.poll() is None, "the PostgreSQL server has died"
        try:
            psycopg.connect(host=str(folder), user="gf", dbname="postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            with pytest.raises(subprocess.TimeoutExpired):
                server.wait(0.1)
            continue
        return
    pytest.fail("the PostgreSQL server did not come up")


def new_database(url: str) -> str:
    """An empty database on that server."""
    name = f"t{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create database {name}")  # type: ignore[call-overload]
    return url.replace("/postgres?", f"/{name}?")

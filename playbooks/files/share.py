"""Offers the files of one directory, read-only, with byte ranges: ``share.py IP PORT DIR``. Standard library only.

``python3 -m http.server`` knows no ranges, and a copy of 700 GB must be able to go on where it broke off.
"""

import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(sys.argv[3])
NAME = re.compile(r"/([A-Za-z0-9_][A-Za-z0-9._-]*)")
RANGE = re.compile(r"bytes=(\d+)-")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 300

    def do_GET(self):
        match = NAME.fullmatch(self.path)
        try:
            file = (FOLDER / match[1]).open("rb") if match else None
        except OSError:
            file = None
        if file is None:
            self.send_error(404)
            return
        with file:
            self.send_file(file)

    def send_file(self, file):
        size = os.fstat(file.fileno()).st_size
        wanted = RANGE.fullmatch(self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        if wanted and start >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(size - start))
        self.end_headers()
        self.wfile.flush()
        if start < size:
            self.connection.sendfile(file, start, size - start)

    def log_message(self, *_):
        """One line per request of hundreds of files is noise."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A peer that went away is none of our business."""


if __name__ == "__main__":
    Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()

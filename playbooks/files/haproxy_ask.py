"""Send one command to HAProxy's runtime socket and print the answer: haproxy_ask.py SOCKET COMMAND."""

import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
    channel.settimeout(10)
    try:
        channel.connect(sys.argv[1])
        channel.sendall((sys.argv[2] + "\n").encode())
        while piece := channel.recv(65536):
            sys.stdout.write(piece.decode(errors="replace"))
    except OSError as error:
        sys.exit(f"HAProxy does not answer: {error}")

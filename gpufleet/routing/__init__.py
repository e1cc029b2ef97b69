"""The front door: haproxy.cfg from channels and cells, HAProxy's runtime socket, TLS. Rendering is pure."""

"""The KV gate: an HTTP proxy before vLLM on a prefill node that lets one TileRT hand-over through at a time.

TileRT's prefill connector has one staging buffer per rank for all requests; hand-overs that overlap reach each other's
decode node (tilert 0.1.6.post3, pd_vllm/prefill_connector.py). docs/gate.md argues when the buffer is free.
Runs on nodes, also as one file (``bundle``): imports nothing of the rest, and only the standard library.
"""

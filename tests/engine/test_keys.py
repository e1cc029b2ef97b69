"""Keys say whose an instance is."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain.nodes import NodeName
from gpufleet.engine.keys import is_ours, new_key, parse_key

NAMES = st.from_regex(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", fullmatch=True)
OWNER = "ab2c"


@given(NAMES.filter(lambda n: len(n) <= 24), NAMES.filter(lambda n: len(n) <= 16), st.integers(0, 511))
def test_a_key_tells_fleet_node_and_owner_and_every_provider_takes_it(fleet: str, pool: str, index: int) -> None:
    node = NodeName(pool, index)
    key = new_key(fleet, node, OWNER)
    assert re.fullmatch(r"[a-z0-9-]{1,50}", key)
    parsed = parse_key(key)
    assert parsed is not None
    assert (parsed.fleet, parsed.owner) == (fleet, OWNER)
    assert parsed.may_be(node)
    assert not parsed.may_be(NodeName(pool, index + 1))
    assert is_ours(key, fleet)


def test_other_names_are_no_keys() -> None:
    for name in ("", "gf-", "gf-demo", "web-1", "gf-demo-decode0-ab2cdefghij", "gf-demo-decode-ab2cdefghijk"):
        assert parse_key(name) is None

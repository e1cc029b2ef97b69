"""Leases of listed hosts beside the contract."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.market import Instance, InstanceState, OfferQuery
from gpufleet.providers.base import LeasesHosts, Lifetime, Provider
from gpufleet.providers.errors import CapacityError, InstanceNotFound, InvalidRequest
from tests.providers.places import Place, cheapest, rent, request

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJ5IGl0c2VsZiB0aGlzIGtleSBvcGVucyBub3RoaW5n"


def place_with(folder: Path, **host: Any) -> Place:
    return Place(
        "ssh", folder, {"hosts": [{"host": "127.65.1.1", "gpu": "B200:8", "workdir": str(folder / "w"), **host}]}
    )


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh"], input=script, capture_output=True, text=True, timeout=60, check=False)


def leasing(provider: Provider) -> LeasesHosts:
    assert isinstance(provider, LeasesHosts)
    return provider


def test_a_lease_ends_by_release_and_never_by_ending_the_host(tmp_path: Path) -> None:
    assert place_with(tmp_path).open().caps.lifetime is Lifetime.RELEASE


def test_a_host_costs_nothing_unless_its_price_is_given(tmp_path: Path) -> None:
    offer = cheapest(place_with(tmp_path).open())
    assert offer.usd_per_hour == 0
    assert offer.vram_gb_per_gpu == 180
    assert offer.interconnect == "unknown"


def test_the_endpoint_is_what_the_inventory_says(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("key")
    place = place_with(
        tmp_path, port=2200, user="ubuntu", key="file:id", host_key=KEY + " a comment", private_ip="10.9.0.1", rdma="ib"
    )
    provider = place.open()
    made = rent(provider)
    assert made.ssh is not None
    assert (made.ssh.host, made.ssh.port, made.ssh.user) == ("127.65.1.1", 2200, "ubuntu")
    assert made.ssh.host_key == KEY
    assert made.ssh.key_file == str((tmp_path / "id").resolve())
    assert made.ssh.workdir == str(tmp_path / "w")
    assert made.private_ip == "10.9.0.1"


def test_the_private_address_is_the_host_when_that_is_an_address(tmp_path: Path) -> None:
    assert rent(place_with(tmp_path / "a").open()).private_ip == "127.65.1.1"
    assert rent(place_with(tmp_path / "b", host="gpu-1.example").open()).private_ip is None


def test_a_missing_login_key_is_said_before_the_host_is_leased(tmp_path: Path) -> None:
    provider = place_with(tmp_path, key="file:nowhere").open()
    with pytest.raises(InvalidRequest):
        rent(provider)
    assert provider.inventory().instances == ()


def test_a_second_fleet_of_the_same_state_cannot_have_a_leased_host(tmp_path: Path) -> None:
    place = place_with(tmp_path)
    offer = cheapest(place.open())
    rent(place.open())
    with pytest.raises(CapacityError):
        place.open().create(request(offer, "gf-other-0-a", fleet="other"))


def test_the_same_key_gives_the_same_lease(tmp_path: Path) -> None:
    place = place_with(tmp_path)
    offer = cheapest(place.open())
    assert place.open().create(request(offer)) == place.open().create(request(offer))


def test_a_host_that_is_struck_from_the_list_stays_leased_and_reachable(tmp_path: Path) -> None:
    made = rent(place_with(tmp_path).open())
    other = place_with(tmp_path, host="127.65.1.2").open()
    listed = other.inventory().named(made.name)
    assert [i.ssh for i in listed] == [made.ssh]
    assert [o.offer_id for o in other.offers(OfferQuery())] == ["127.65.1.2:22"]
    other.terminate(made.instance_id)
    assert other.get(made.instance_id).state is InstanceState.TERMINATED


def test_a_released_host_is_offered_again(tmp_path: Path) -> None:
    provider = place_with(tmp_path).open()
    made = rent(provider)
    assert provider.offers(OfferQuery()) == []
    provider.terminate(made.instance_id)
    assert len(provider.offers(OfferQuery())) == 1


class TestLeaseOnTheHost:
    """The scripts, run by a real shell; two state folders stand for two operators."""

    @pytest.fixture
    def mine(self, tmp_path: Path) -> tuple[LeasesHosts, Instance]:
        return self._operator(tmp_path, "mine")

    @pytest.fixture
    def theirs(self, tmp_path: Path) -> tuple[LeasesHosts, Instance]:
        return self._operator(tmp_path, "theirs")

    def _operator(self, folder: Path, name: str, **changes: Any) -> tuple[LeasesHosts, Instance]:
        (folder / name).mkdir()
        provider = place_with(folder / name, workdir=str(folder / "host work")).open()
        return leasing(provider), rent(provider, f"gf-{name}-0-k", **changes)

    def test_it_may_be_taken_again_by_its_holder(self, mine: tuple[LeasesHosts, Instance], tmp_path: Path) -> None:
        script = mine[0].lease_script(mine[1].instance_id)
        assert run(script).returncode == 0
        assert run(script).returncode == 0
        holder = (tmp_path / "host work" / "lease" / "holder").read_text()
        assert "key=gf-mine-0-k\n" in holder
        assert "fleet=test\n" in holder

    def test_another_operator_is_told_who_holds_it(
        self, mine: tuple[LeasesHosts, Instance], theirs: tuple[LeasesHosts, Instance]
    ) -> None:
        assert run(mine[0].lease_script(mine[1].instance_id)).returncode == 0
        refused = run(theirs[0].lease_script(theirs[1].instance_id))
        assert refused.returncode == 75
        assert "key=gf-mine-0-k" in refused.stderr
        assert "remove" in refused.stderr

    def test_after_a_release_another_may_have_it(
        self, mine: tuple[LeasesHosts, Instance], theirs: tuple[LeasesHosts, Instance]
    ) -> None:
        run(mine[0].lease_script(mine[1].instance_id))
        release = mine[0].release_script(mine[1].instance_id)
        assert [run(release).returncode, run(release).returncode] == [0, 0]
        assert run(theirs[0].lease_script(theirs[1].instance_id)).returncode == 0

    def test_a_release_leaves_the_lease_of_another(
        self, mine: tuple[LeasesHosts, Instance], theirs: tuple[LeasesHosts, Instance]
    ) -> None:
        run(mine[0].lease_script(mine[1].instance_id))
        assert run(theirs[0].release_script(theirs[1].instance_id)).returncode == 0
        assert run(theirs[0].lease_script(theirs[1].instance_id)).returncode == 75

    def test_a_release_works_on_a_host_that_was_never_prepared(self, mine: tuple[LeasesHosts, Instance]) -> None:
        assert run(mine[0].release_script(mine[1].instance_id)).returncode == 0

    def test_an_expired_holder_is_replaced(self, tmp_path: Path, theirs: tuple[LeasesHosts, Instance]) -> None:
        soon = datetime.now(UTC) + timedelta(hours=1)
        mine = self._operator(tmp_path, "mine", deadline_at=soon)
        assert run(mine[0].lease_script(mine[1].instance_id)).returncode == 0
        assert run(theirs[0].lease_script(theirs[1].instance_id)).returncode == 75
        holder = tmp_path / "host work" / "lease" / "holder"
        holder.write_text(holder.read_text().replace(f"expires={int(soon.timestamp())}", "expires=1"))
        assert run(theirs[0].lease_script(theirs[1].instance_id)).returncode == 0

    def test_many_at_once_have_one_winner(self, tmp_path: Path) -> None:
        operators = [self._operator(tmp_path, f"op-{n}") for n in range(8)]
        shells = [
            subprocess.Popen(["/bin/sh"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for _ in operators
        ]
        for shell, (provider, made) in zip(shells, operators, strict=True):
            assert shell.stdin is not None
            shell.stdin.write(provider.lease_script(made.instance_id))
            shell.stdin.close()
        assert sorted(shell.wait(timeout=60) for shell in shells) == [0] + [75] * 7

    def test_the_scripts_are_clean_posix_shell(self, mine: tuple[LeasesHosts, Instance]) -> None:
        for script in (mine[0].lease_script(mine[1].instance_id), mine[0].release_script(mine[1].instance_id)):
            checked = subprocess.run(
                [str(Path(sys.executable).with_name("shellcheck")), "-s", "sh", "-"],
                input=script,
                capture_output=True,
                text=True,
                check=False,
            )
            assert checked.returncode == 0, checked.stdout

    def test_an_unknown_lease_has_no_script(self, mine: tuple[LeasesHosts, Instance]) -> None:
        with pytest.raises(InstanceNotFound):
            mine[0].lease_script("no-such-lease")

"""S11: which addresses the service connects to for a user."""

import pytest

from service.domain.errors import Invalid
from service.domain.reach import ANY, parse_host_rules

FORBIDDEN = [
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "0.0.0.0",
    "0.1.2.3",
    "::",
    "::ffff:0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "ff02::1",
    "",
    "db",
]
ORDINARY = ["127.0.0.1", "127.0.0.2", "::1", "10.1.2.3", "192.168.1.1", "93.184.216.34", "2001:db8::1", "fd12::1"]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_s11_link_local_and_metadata_addresses_are_refused_whatever_their_name(address: str) -> None:
    named = parse_host_rules(["db", "*.example", "10.0.0.0/8"])
    for rules in (ANY, named):
        assert not rules.permits("db", address)
        assert not rules.permits("db.example", address)


@pytest.mark.parametrize("address", ORDINARY)
def test_s11_without_a_list_every_other_address_is_permitted_and_none_is_listed(address: str) -> None:
    assert ANY.permits("db", address)
    assert not ANY.lists("db", address)


@pytest.mark.parametrize(
    ("entries", "host", "address", "permitted"),
    [
        ([], "db", "10.0.0.1", False),
        (["db"], "db", "10.0.0.1", True),
        (["DB."], "db", "10.0.0.1", True),
        (["db"], "Db.", "10.0.0.1", True),
        (["db"], "dbx", "10.0.0.1", False),
        (["db"], "x.db", "10.0.0.1", False),
        (["*.db.example"], "a.db.example", "10.0.0.1", True),
        (["*.db.example"], "db.example", "10.0.0.1", False),
        (["*.db.example"], "evildb.example", "10.0.0.1", False),
        (["10.0.0.0/8"], "anything", "10.0.0.1", True),
        (["10.0.0.0/8"], "anything", "11.0.0.1", False),
        (["10.0.0.0/8"], "anything", "::ffff:10.0.0.1", True),
        (["10.0.0.0/8"], "10.0.0.1", "11.0.0.1", False),
        (["169.254.0.0/16"], "metadata", "169.254.169.254", True),
        (["169.254.169.254"], "metadata", "169.254.169.254", True),
        (["169.254.169.254"], "metadata", "169.254.169.253", False),
        (["64:ff9b::/96"], "metadata", "64:ff9b::a9fe:a9fe", False),
        (["fe80::/10"], "db", "fe80::1%lo", True),
        (["[::1]"], "localhost", "::1", True),
        (["[::1]"], "localhost", "127.0.0.1", False),
    ],
)
def test_s11_a_list_permits_what_it_has_and_nothing_else(
    entries: list[str], host: str, address: str, permitted: bool
) -> None:
    rules = parse_host_rules(entries)
    assert rules.permits(host, address) is permitted
    assert rules.lists(host, address) is permitted


def test_s11_a_name_that_no_entry_can_match_is_not_asked_of_a_name_server() -> None:
    assert not parse_host_rules(["db"]).may_resolve("other")
    assert parse_host_rules(["db"]).may_resolve("DB")
    assert parse_host_rules(["10.0.0.0/8"]).may_resolve("other")
    assert ANY.may_resolve("other")


@pytest.mark.parametrize("entry", ["", "*", "a b", "http://db", "db:5432", "10.0.0.0/33", "10.0.0.1/8", "*.*.db", "/a"])
def test_s11_what_is_no_host_is_refused_in_the_list(entry: str) -> None:
    with pytest.raises(Invalid, match="TIDEFILL_SOURCE_HOSTS"):
        parse_host_rules([entry])

"""Which URLs and addresses a webhook may have."""

from ipaddress import ip_address

import pytest

from server.features.jobs.webhook_addresses import AddressRefused, AddressRules, CheckedNetwork, is_public

OF_THIS_MACHINE = ["0.0.0.0", "127.0.0.1", "127.9.9.9", "::", "::1", "::7f00:1", "::ffff:127.0.0.1"]
OF_NETWORKS = ["10.0.0.1", "100.64.0.1", "172.16.0.1", "192.168.1.1", "::ffff:10.0.0.1", "fec0::1", "fc00::1"]
OF_CLOUDS = ["100.100.100.200", "168.63.129.16", "169.254.169.254", "192.0.0.192", "fd00:ec2::254"]  # metadata
MAPPED = ["64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "2002:7f00:1::1"]
TEREDO = ["2001:0:4136:e378:8000:63bf:3fff:fdd2"]
RESERVED = ["198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "fe80::1", "ff02::1", "2001:db8::1"]
PRIVATE = OF_THIS_MACHINE + OF_NETWORKS + OF_CLOUDS + MAPPED + TEREDO + RESERVED
PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("address", PRIVATE)
@pytest.mark.holds("Webhooks reach public addresses alone")
def test_an_address_that_is_not_of_the_open_internet_is_refused(address: str) -> None:
    assert not AddressRules().allows(ip_address(address))
    assert AddressRules(allows_private=True).allows(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://example.com/", "https://"),
        ("http://127.0.0.1/", "https://"),
        ("ftp://example.com/", "https://"),
        ("/hook", "https://"),
        ("https:///hook", "name a host"),
        ("https://user@example.com/", "a user or a password"),
        ("https://:secret@example.com/", "a user or a password"),
        ("https://example.com:22/", "443, 80, or at least 1024"),
        ("https://example.com:0/", "443, 80, or at least 1024"),
        ("https://example.com:99999/", "can't be read"),
        ("https://[::1/", "can't be read"),
        ("https://example.com\\@10.0.0.1/", "characters"),
        ("https://example.com/\r\nhost: other", "characters"),
        ("https://ex\u00e4mple.com/", "characters"),
        ("https://example.com/" + "a" * 2048, "2048"),
    ],
)
def test_a_url_that_is_not_allowed_is_refused_by_name(url: str, problem: str) -> None:
    with pytest.raises(AddressRefused, match=problem) as refused:
        AddressRules().check_url(url)
    assert url not in str(refused.value)


@pytest.mark.parametrize("url", ["https://example.com/a?b=c", "https://example.com:8443", "https://[2606:4700::1]/x"])
def test_a_plain_https_url_is_allowed(url: str) -> None:
    AddressRules().check_url(url)


def test_http_is_allowed_to_this_machine_alone_and_only_by_the_flag() -> None:
    rules = AddressRules(allows_private=True)
    for host in ("localhost", "127.0.0.1", "[::1]"):
        rules.check_url(f"http://{host}:9/")
    with pytest.raises(AddressRefused):
        rules.check_url("http://10.0.0.1:8000/")


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "::1", "::ffff:127.0.0.1"])
@pytest.mark.holds("Webhooks reach public addresses alone")
async def test_what_a_name_resolves_to_is_checked_however_it_is_written(host: str) -> None:
    with pytest.raises(AddressRefused, match="no address that is allowed"):
        await CheckedNetwork(AddressRules()).connect_tcp(host, 9)

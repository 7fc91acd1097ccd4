"""Which addresses tools may reach: what is refused, by a resolver of our own."""

from __future__ import annotations

import pytest

from oakleaf.agent.tools.public_target import refusal, resolve_target
from oakleaf.errors import OutOfScope

pytestmark = pytest.mark.attack


def no_network(host: str, port: int) -> list[str]:
    raise AssertionError(f"{host}:{port} was resolved")


class TestAddress:
    @pytest.mark.parametrize(
        "address",
        [
            "127.0.0.1",
            "127.255.255.254",
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "169.254.170.2",
            "100.64.0.1",
            "100.100.100.200",
            "192.0.0.192",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "192.88.99.1",
            "168.63.129.16",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::ffff:0:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fe80::1%eth0",
            "2606:4700::1%eth0",
            "fec0::1",
            "ff02::1",
            "localhost",
            "",
        ],
    )
    def test_that_is_not_public_is_refused_by_itself_and_behind_a_name(self, address: str) -> None:
        assert refusal(address) is not None
        for addresses in ([address], ["93.184.216.34", address], [address, "93.184.216.34"]):
            with pytest.raises(OutOfScope):
                resolve_target(
                    "http://x.example/", frozenset(), lambda host, port, addresses=addresses: addresses
                )

    @pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "172.32.0.1", "2606:4700::1111"])
    def test_that_is_public_passes(self, address: str) -> None:
        assert refusal(address) is None

    def test_a_host_that_was_named_may_be_private(self) -> None:
        target = resolve_target(
            "http://x.example:81/a?b#c", frozenset({"x.example:81"}), lambda host, port: ["10.0.0.1"]
        )
        assert (target.url, target.path) == ("http://x.example:81/a?b", "/a?b")
        assert target.addresses == ("10.0.0.1",)
        with pytest.raises(OutOfScope):
            resolve_target(
                "http://x.example:82/", frozenset({"x.example:81"}), lambda host, port: ["10.0.0.1"]
            )

    def test_a_name_without_any_is_refused(self) -> None:
        with pytest.raises(OutOfScope, match="no address"):
            resolve_target("http://x.example/", frozenset(), lambda host, port: [])


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://x.example/",
        "gopher://x.example/",
        "data:text/plain,x",
        "javascript:alert(1)",
        "//x.example/",
        "x.example",
        "",
        "http://",
        "http:///path",
        "http://:80/",
        "http://127.0.0.1/",
        "http://127.1/",
        "http://127.0.0.1./",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.0.0.1/",
        "http://0177.0.0.1/",
        "http://127.0.0.0x1/",
        "http://0/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[fe80::1%25lo]/",
        "http://[v1.x]/",
        "http://[::1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://user:hunter2@x.example/",
        "http://x.example@127.0.0.1/",
        "http://127.0.0.1\\@x.example/",
        "http://x.example\\.evil/",
        "http://x.exa\tmple/",
        "http://x.example/\r\nHost: evil",
        " http://x.example/",
        "http://x.example:0/",
        "http://x.example:/",
        "http://x.example:99999/",
        "http://x.example:8x/",
        "http://%31%32%37.0.0.1/",
        "http://ⓛocalhost/",
        "http://１２７.0.0.1/",
        "http://x..example/",
        "http://x.example,127.0.0.1/",
    ],
)
def test_a_url_that_is_none_or_leads_inwards_is_refused_before_anything_is_resolved(url: str) -> None:
    with pytest.raises(OutOfScope) as excinfo:
        resolve_target(url, frozenset(), no_network)
    assert "hunter2" not in str(excinfo.value)

"""Addresses of ports, derived from the address of the IDE."""

import pytest

from codehub.domain.port_links import PortLinks
from codehub.domain.ports import network_of, parse_port, port_address


@pytest.mark.parametrize("text", ["1", "80", "3000", "65535"])
def test_a_port_in_canonical_form(text: str) -> None:
    assert parse_port(text) == int(text)


@pytest.mark.parametrize(
    "text",
    ["", "0", "65536", "99999", "00080", "080", "-1", "+80", " 80", "80 ", "80\n", "8_0", "1e3", "0x50",
     "8.0", "9" * 5000, "٣٠٠٠", "３０００", "²", "http"],
)  # fmt: skip
def test_a_port_in_any_other_form_is_rejected(text: str) -> None:
    assert parse_port(text) is None


def test_a_container_has_its_own_address() -> None:
    assert port_address("tcp:10.222.0.2:8080", 3000) == "tcp:10.222.0.2:3000"
    assert port_address("tcp:[fd00::2]:8080", 3000) == "tcp:[fd00::2]:3000"


def test_a_sandbox_has_a_port_broker_beside_the_socket_of_its_ide() -> None:
    assert port_address("unix:/d/runtime/w1/ide.sock", 3000) == "broker:/d/runtime/w1/net.sock:3000"


@pytest.mark.parametrize(
    "upstream",
    ["tcp:127.0.0.1:8080", "tcp:127.9.9.9:8080", "tcp:[::1]:8080", "tcp:[::ffff:127.0.0.1]:8080",
     "tcp:0.0.0.0:8080", "tcp:[::]:8080", "tcp:[::ffff:0.0.0.0]:80", "tcp:localhost:8080", "tcp:host:8080",
     "tcp:8080", "unix:ide.sock", "", "other:10.0.0.1:80"],
)  # fmt: skip
def test_a_port_of_the_host_belongs_to_no_workspace(upstream: str) -> None:
    assert network_of(upstream) is None
    assert port_address(upstream, 3000) is None


@pytest.mark.parametrize(
    ("base_url", "apps_domain", "link"),
    [
        ("http://localhost:8080", "localhost:8080", "http://{{port}}--w1.localhost:8080/"),
        ("https://code.example", "apps.example", "https://{{port}}--w1.apps.example/"),
        ("https://code.example:8443", "apps.example", "https://{{port}}--w1.apps.example:8443/"),
        ("https://code.example", "", "./proxy/{{port}}/"),
    ],
)
def test_an_ide_gets_the_urls_of_its_ports(base_url: str, apps_domain: str, link: str) -> None:
    assert PortLinks(base_url, apps_domain).environment_variables("w1") == {"VSCODE_PROXY_URI": link}

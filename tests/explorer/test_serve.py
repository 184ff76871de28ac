"""Addresses: taken, in use, impossible."""

import socket

import pytest

from codinet.errors import UserError
from codinet.explorer.serve import address, listen


def test_a_free_port_is_taken_and_told() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        assert address("127.0.0.1", listener) == f"http://127.0.0.1:{port}/"
        assert address("0.0.0.0", listener) == f"http://127.0.0.1:{port}/"
        assert address("::", listener) == f"http://[::1]:{port}/"
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_port_in_use_is_said() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"^Port {port} is in use; choose another with --port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", -1), ("127.0.0.1", 70_000), ("no.such.host.invalid", 0)])
def test_an_impossible_address_is_said(host: str, port: int) -> None:
    with pytest.raises(UserError, match=r"is no (port|address)"):
        listen(host, port)


def test_an_address_of_another_machine_is_said() -> None:
    with pytest.raises(UserError, match=r"--host 192\.0\.2\.1 is no address of this machine; leave it out"):
        listen("192.0.2.1", 0)

"""Servers that other machines ask."""

import socket
import socketserver
from typing import Any


class OnEveryAddress(socketserver.TCPServer):
    """A server whose host may be empty for every address of this machine, of IPv4 and of IPv6: a
    cluster may have only one of them. Its other bases are of `socketserver` or `http.server`."""

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        if not address[0] and socket.has_dualstack_ipv6():
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

"""The settings of a server. In: the options of the command. Out: one frozen record that every part reads.

Settings that cannot work are refused here; for unwise ones the command prints a warning."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tilewright.base.errors import ConfigError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Settings:
    """Addresses, key and limits of a server. Times are in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str = ""  # empty: no key is asked for
    allowed_hosts: tuple[str, ...] = ()  # names beside the bound one that requests may be addressed to
    allowed_origins: tuple[str, ...] = ()  # web pages of other servers that may call this one
    queue: int = 64  # requests that wait for a slot; one more is told to come again
    max_tokens: int = 0  # the most that one request may generate; 0: as far as the context reaches
    max_body: int = 1 << 18
    request_seconds: float = 600.0  # from the arrival of a request to the end of its answer
    read_seconds: float = 20.0  # for a client to send its headers, and again for the body
    grace_seconds: float = 10.0  # that running requests have when the server is told to stop
    connections: int = 512
    warm_up: bool = True  # compile what requests need before the first one, while there is none

    def __post_init__(self) -> None:
        at_least_one = ("max_body", "request_seconds", "read_seconds", "connections")
        for name in (*at_least_one, "queue", "max_tokens", "grace_seconds"):
            value, least = getattr(self, name), 1 if name in at_least_one else 0
            if not value >= least:
                raise ConfigError("serve", f"{name} is {value}", f"give at least {least}")
        if not 0 <= self.port <= 65535:
            raise ConfigError("serve", f"port {self.port} does not exist", "choose 0 (any free one) to 65535")
        # A header is compared as bytes that are read as Latin-1.
        if not self.api_key.isascii() or not self.api_key.isprintable() or self.api_key != self.api_key.strip():
            raise ConfigError("serve", "the API key cannot be sent in a header", "use printable ASCII without spaces")
        for origin in self.allowed_origins:
            if not origin.startswith(("http://", "https://")) or origin.endswith("/"):
                raise ConfigError(
                    "serve", f"{origin!r} is not an origin", "write it as https://name or https://name:port"
                )

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can connect."""
        return is_loopback_name(self.host)

    def warnings(self) -> list[str]:
        """What the operator should know before the server starts."""
        found = []
        if not self.is_loopback and not self.api_key:
            found.append(
                f"{self.host} can be reached from other machines, and no API key is set: whoever reaches it can use it"
            )
        return found

    def accepts_host(self, header: str) -> bool:
        """Whether a request with this Host header is for this server.

        A page of another site can have its own name resolved to 127.0.0.1 and then talk to this server as if it were
        its own (DNS rebinding). Its requests still carry that name. A server that other machines reach cannot know its
        names, so there only the given list decides.
        """
        name = host_of(header)
        if name in self.allowed_hosts:
            return True
        if self.is_loopback:
            return is_loopback_name(name)
        return not self.allowed_hosts or name == self.host.lower()

    def accepts_origin(self, origin: str, host: str) -> bool:
        """Whether a web page of this origin may call: the page of this server, and the origins that the operator
        lists."""
        return origin in self.allowed_origins or origin.partition("://")[2].lower() == host.lower()


def is_loopback_name(name: str) -> bool:
    if name.lower().rstrip(".") in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The name in a Host header, without its port: `localhost:8000`, `[::1]:8000`."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]

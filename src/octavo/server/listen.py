"""The listening socket: bound before anything expensive, so that a taken port is known at once."""

from __future__ import annotations

import errno
import resource
import socket

BACKLOG = 2048
KEEPALIVE_IDLE_S = 60
#: Of a response, so much may wait in the kernel for its client; the rest stays with its choice, where pieces join.
UNSENT_BYTES = 128 << 10


class ListenError(RuntimeError):
    """The address can't be listened on; one sentence for the user."""


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises ListenError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ListenError(f"The host {host!r} is not an address of this machine: {error.strerror}.") from error
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # restart at once after a crash
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets inherit it: dead peers show
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # else buffers grow to megabytes for every client that does not read
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenError(
                f"Port {port} on {host} is taken by another program; stop that, or choose another one with --port."
            ) from error
        if error.errno == errno.EACCES:
            raise ListenError(f"This user may not listen on port {port}; choose one above 1023 with --port.") from error
        raise ListenError(f"Can't listen on {host} port {port}: {error.strerror}.") from error
    return sock


def allow_many_connections() -> None:
    """Raise the limit of open files as far as this user may: 1,024 is less than the queue has seats."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

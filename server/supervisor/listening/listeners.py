"""The listening sockets of one port, and an end that loses no connection that a client takes for established.

The kernel completes a handshake by itself and queues the connection until some process accepts it. What is in that
queue when the last descriptor is closed gets a reset. So a filter first drops the packets that would begin a handshake
(SYN); handshakes under way still finish, and the queue is read until it is empty. A client whose SYN was dropped
repeats it a second later, and is refused then, or reaches another server behind the balancer.

The filter belongs to the socket and not to a process. A socket that somebody else goes on serving never gets one.
"""

import ctypes
import socket
import struct
from collections.abc import Sequence

_SO_ATTACH_FILTER = 26  # asm-generic/socket.h; Python has no name for it
_TCP_INFO_BYTES = 192
_TCP_INFO_UNACKED = struct.Struct("24xI")  # linux/tcp.h: of a listening socket it is the length of the accept queue

# Classic BPF (linux/filter.h): code, jump if true, jump if false, constant. The filter of a listening TCP socket sees a
# packet from its TCP header on, with IPv4 and with IPv6.
_INSTRUCTION = struct.Struct("HBBI")
_SYN, _ACK = 0x02, 0x10
_DROP_SYN = b"".join(
    _INSTRUCTION.pack(*instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # load byte 13, the flags
        (0x54, 0, 0, _SYN | _ACK),  # keep these two
        (0x15, 0, 1, _SYN),  # SYN alone?
        (0x06, 0, 0, 0),  # drop
        (0x06, 0, 0, 0xFFFFFFFF),  # keep the whole packet
    )
)


class Listeners:
    """The sockets of one port; they share an address.

    kept_elsewhere  whether another process has them too and goes on after this server: systemd, or a server that takes
                    over. Then connections wait in their queues for whoever accepts next.
    """

    def __init__(self, sockets: Sequence[socket.socket], *, kept_elsewhere: bool = False) -> None:
        self.sockets = tuple(sockets)
        self.kept_elsewhere = kept_elsewhere

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.sockets[0].getsockname()[:2]
        return host, port

    def refuse_new(self) -> None:
        """From now on no handshake begins, in any process that serves these sockets."""
        assert not self.kept_elsewhere, "another process goes on serving them"
        program = ctypes.create_string_buffer(_DROP_SYN)
        length = len(_DROP_SYN) // _INSTRUCTION.size
        for listener in self.sockets:
            sock_fprog = struct.pack("HL", length, ctypes.addressof(program))
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, sock_fprog)

    def num_waiting(self) -> int:
        """Connections that no process has accepted yet."""
        return sum(map(_queue_length, self.sockets))

    def close(self) -> None:
        """Close our copies; the port closes with the last process that has one."""
        for listener in self.sockets:
            listener.close()


def _queue_length(listener: socket.socket) -> int:
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    (length,) = _TCP_INFO_UNACKED.unpack_from(info)
    return int(length)

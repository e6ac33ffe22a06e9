"""Ports of a uvala switch: open by name, send, receive, wait.

    with uvala.Port("vale0:a") as port:
        port.send(frame)
        frame = port.recv(timeout=1.0)

docs/python.md has the whole story.
"""
from ._function import DROP, HOLD, NEXT, PORT, SERVICE, Frame, Function
from ._library import Error, ErrorCode, version
from ._port import RX, TX, Port, RxRing, TxRing

__all__ = [
    "DROP", "HOLD", "NEXT", "PORT", "RX", "SERVICE", "TX",
    "Error", "ErrorCode", "Frame", "Function", "Port", "RxRing", "TxRing", "version",
]

"""libuvala as include/uvala.h declares it: structures, functions, errors.

All calls but those that open and close a port keep the interpreter's lock: they do not wait, or but
for an answer of the daemon, and a port is one thread's in C.
"""
from __future__ import annotations

import ctypes
import enum
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t
from ctypes import c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, List, Optional, Tuple, Type

FRAME_MAX = 65553


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("dir", c_char_p), ("group", c_char_p),
        ("tx_rings", c_uint16), ("rx_rings", c_uint16),
        ("tx_slots", c_uint32), ("rx_slots", c_uint32),
        ("extra_bufs", c_uint32), ("yields", c_int32), ("flags", c_uint32),
        ("client", c_char_p), ("stop", c_void_p), ("group_memory", c_uint64),
    ]


EXISTING = 0x1


class Slot(ctypes.Structure):
    _fields_ = [("buf_idx", c_uint32), ("len", c_uint16), ("flags", c_uint16), ("ptr", c_uint64)]


MOREFRAG = 0x20


class Queue(ctypes.Structure):
    _fields_ = [
        ("slots", POINTER(Slot)), ("pool", c_void_p), ("num_slots", c_uint32),
        ("stride", c_uint32), ("buffers", c_uint32), ("head", c_uint32), ("count", c_uint32),
        ("dir", c_uint32), ("ring", c_void_p),
    ]


class ErrorCode(enum.IntEnum):
    """What went wrong: UVALA_E… of uvala.h."""

    ARG = -1
    NAME = -2
    NODAEMON = -3
    LOST = -4
    PERM = -5
    NOTFOUND = -6
    EXISTS = -7
    INUSE = -8
    QUOTA = -9
    NOMEM = -10
    REQUEST = -11
    UNSUPPORTED = -12
    INTERNAL = -13
    TOOSHORT = -14
    TOOLONG = -15
    RESYNC = -16
    PROTOCOL = -17
    SYSTEM = -18
    DELETED = -19
    STOPPED = -20


class Error(Exception):
    """A call failed. The text has the whole story, `code` its kind."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def _find() -> str:
    """The wheel's own library; without one, that of the system."""
    bundled = Path(__file__).with_name("libuvala.so.0")
    return str(bundled) if bundled.exists() else "libuvala.so.0"


Signature = Tuple[Optional[Type[Any]], List[Any]]


def _load(load: type[ctypes.CDLL], **functions: Signature) -> ctypes.CDLL:
    try:
        library = load(_find())
    except OSError as error:
        raise ImportError(f"uvala needs libuvala: {error}") from error
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"uvala_{name}")
        function.restype, function.argtypes = result, arguments
    return library


# What waits for the daemon, without the interpreter's lock.
slow = _load(
    ctypes.CDLL,
    open=(c_int, [c_char_p, POINTER(Options), POINTER(c_void_p)]),
    close=(None, [c_void_p]),
)

Callback = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)

quick = _load(
    ctypes.PyDLL,
    errmsg=(c_char_p, []),
    version=(c_char_p, []),
    send=(c_int, [c_void_p, c_char_p, c_size_t, c_int64]),
    recv=(c_int, [c_void_p, c_void_p, c_size_t, c_int64]),
    drain=(c_int, [c_void_p, c_int64]),
    fd=(c_int, [c_void_p]),
    arm=(c_int, [c_void_p, c_int, c_uint32]),
    disarm=(c_int, [c_void_p]),
    tx=(POINTER(Queue), [c_void_p, c_uint32]),
    rx=(POINTER(Queue), [c_void_p, c_uint32]),
    look=(c_uint32, [POINTER(Queue)]),
    submit=(c_int, [POINTER(Queue), c_uint32]),
    release=(c_int, [POINTER(Queue), c_uint32]),
    forward=(c_int, [POINTER(Queue), POINTER(Queue), c_uint32]),
    nf_step=(c_int, [c_void_p, Callback, c_void_p, c_int64]),
    check=(c_int, [c_void_p]),
    nf_service=(c_int, [c_void_p, c_char_p]),
    nf_port=(c_int, [c_void_p, c_char_p]),
    nf_chain=(c_int, [c_void_p, c_char_p]),
    nf_send_on=(c_int, [c_void_p, c_uint32, c_int, c_uint32]),
    nf_count=(c_int, [c_void_p, c_char_p, c_uint64]),
    nf_gauge=(c_int, [c_void_p, c_char_p, c_uint64]),
)


def check(result: int) -> int:
    """The result of a call, or its failure."""
    if result < 0:
        raise Error(ErrorCode(result), quick.uvala_errmsg().decode())
    return result


def version() -> str:
    """Version of the library, like "0.1.0"."""
    text: bytes = quick.uvala_version()
    return text.decode()


class Handle:
    """A port of the library, closed when nothing refers to it any more.

    Every memoryview of the port's memory holds its handle, so that memory outlives the last of
    them, whenever the port is closed.
    """

    def __init__(self, name: str, options: Options) -> None:
        # What ctypes passes for the object.
        self._as_parameter_ = c_void_p()
        check(slow.uvala_open(name.encode(), options, ctypes.byref(self._as_parameter_)))

    def __del__(self, close: Any = slow.uvala_close) -> None:
        if self._as_parameter_:
            close(self._as_parameter_)


def memory(handle: Handle, address: int, size: int) -> memoryview:
    """Memory of a port, which lives as long as the view or a slice of it."""
    array = (ctypes.c_ubyte * size).from_address(address)
    array.handle = handle  # type: ignore[attr-defined]
    return memoryview(array).cast("B")

"""Functions of a chain: programs that are asked what becomes of each frame."""
from __future__ import annotations

import ctypes
from ctypes import c_uint32, c_uint64, c_void_p
from typing import Any, Optional

from ._library import Callback, Handle, check, memory, quick
from ._port import RX, Port

# What becomes of a frame.
NEXT, DROP, SERVICE, PORT, HOLD = range(5)

OWN_BYTES = 16


class Frame(ctypes.Structure):
    """A frame that a function is asked about. meta and target may be written; with HOLD, `held` is
    what Function.send_on() takes later, or 0 if the frame cannot be held."""

    _fields_ = [
        ("_data", c_void_p), ("len", c_uint32), ("room", c_uint32), ("meta", c_uint64),
        ("target", c_uint32), ("held", c_uint32),
    ]
    _handle: Handle

    def _memory(self) -> memoryview:
        return memory(self._handle, self._data, self.room)

    @property
    def data(self) -> memoryview:
        """Its bytes, to read and to write; the switch's again when the function has answered."""
        return self._memory()[: self.len]

    def own(self) -> Optional[memoryview]:
        """The functions' own 16 bytes, which travel with the frame, also with one that is held;
        None where the frame reaches into them."""
        at = self.room - OWN_BYTES
        return None if self.len > at else self._memory()[at:]


class Function(Port):
    """A function on a port; frame() is asked about each frame and returns an action."""

    def __init__(self, name: str, *, group: str = "nf", **options: Any) -> None:
        super().__init__(name, group=group, **options)
        self._failure: Optional[BaseException] = None
        self._callback = Callback(self._asked)

    def frame(self, frame: Frame) -> int:
        """What becomes of a frame: NEXT, DROP, SERVICE or PORT (with frame.target), or HOLD."""
        raise NotImplementedError("a function has a method frame()")

    def _asked(self, _context: None, address: int) -> int:
        # An exception cannot pass through the library, and without an answer a frame goes no way.
        try:
            asked = Frame.from_address(address)
            # A copy, which a function may keep: the library's is gone when it has its answer.
            frame = Frame.from_buffer_copy(asked)
            frame._handle = self._handle
            action = self.frame(frame)
            asked.meta, asked.target, asked.len = frame.meta, frame.target, frame.len
            return action
        except BaseException as failure:
            self._failure = self._failure or failure
            return DROP

    def _batch(self) -> int:
        slots = check(quick.uvala_nf_step(self._handle, self._callback, None, 0))
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return slots

    def step(self, timeout: Optional[float] = None) -> int:
        """Handles a batch, after waiting for it; returns its number of slots, 0 when the time is
        over. Raises what frame() raised; that frame is dropped."""
        return self._batch() or (self._batch() if self.wait(RX, 1, timeout) else 0)

    def send_on(self, held: int, action: int = NEXT, target: int = 0) -> None:
        """Sends on what frame() held: frame.held, which it kept, and returned HOLD."""
        check(quick.uvala_nf_send_on(self._handle, held, action, target))

    def service_number(self, name: str) -> int:
        """For frame.target with SERVICE; ask before the first step."""
        return check(quick.uvala_nf_service(self._handle, name.encode()))

    def port_number(self, name: str) -> int:
        """For frame.target with PORT, of a port that a program holds: "vale0:out"."""
        return check(quick.uvala_nf_port(self._handle, name.encode()))

    def chain_number(self, name: str) -> int:
        """As it stands in bits 44 to 51 of frame.meta."""
        return check(quick.uvala_nf_chain(self._handle, name.encode()))

    def count(self, name: str, count: int) -> None:
        """Shows what was counted since the function began: uvala nf list, nf top, metrics."""
        check(quick.uvala_nf_count(self._handle, name.encode(), count))

    def gauge(self, name: str, gauge: int) -> None:
        """The same of what there is now, which also shrinks."""
        check(quick.uvala_nf_gauge(self._handle, name.encode(), gauge))

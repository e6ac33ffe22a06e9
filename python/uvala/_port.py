"""Ports and their rings."""
from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from types import TracebackType
from typing import Any, AsyncIterator, Iterator, Optional, TypeVar, Union

from ._doorbell import PAUSE, Doorbell
from ._library import EXISTING, FRAME_MAX, MOREFRAG, Error, ErrorCode, Handle, Options, Slot
from ._library import check, memory, quick

Bytes = Union[bytes, bytearray, memoryview]
PortType = TypeVar("PortType", bound="Port")

RX = 1
TX = 2

# How long a port that is left waits for the switch to take what it sent.
DRAIN = 1.0


def _deadline(timeout: Optional[float]) -> Optional[float]:
    return None if timeout is None else time.monotonic() + timeout


def _left(deadline: Optional[float]) -> Optional[float]:
    return None if deadline is None else deadline - time.monotonic()


class _Ring:
    """Slots that the program owns, counted from 0."""

    def __init__(self, handle: Handle, queue: Any) -> None:
        about = queue.contents
        self.stride: int = about.stride
        self._pointer: Any = queue
        self._pool = memory(handle, about.pool, about.buffers * about.stride)

    @property
    def _queue(self) -> Any:
        if self._pointer is None:
            raise ValueError("the port is closed")
        return self._pointer

    def _close(self) -> None:
        self._pointer = None
        self._pool = memoryview(b"")

    def __len__(self) -> int:
        """Slots owned, as of the last call."""
        count: int = self._queue.contents.count
        return count

    def look(self) -> int:
        """Looks how far the switch has got; returns the number of slots owned."""
        count: int = quick.uvala_look(self._queue)
        return count

    def _slot(self, i: int) -> Slot:
        about = self._queue.contents
        if not 0 <= i < about.count:
            raise IndexError(f"slot {i} of {about.count}")
        slot: Slot = about.slots[(about.head + i) % about.num_slots]
        return slot

    def _bytes(self, slot: Slot, length: int) -> memoryview:
        # Like uvala_extra_data(): a number that no buffer has leads to wrong bytes, never to
        # wrong memory.
        at = slot.buf_idx * self.stride
        at = at if at < len(self._pool) else 0
        return self._pool[at : at + min(length, self.stride)]


class TxRing(_Ring):
    """A transmit ring: fill the frames of the first slots, then submit them."""

    def frame(self, i: int, length: int, more: bool = False) -> memoryview:
        """The bytes of slot i, to write; they hold an old frame. more: the frame goes on in the
        next slot."""
        slot = self._slot(i)
        if not 0 < length <= self.stride:
            raise ValueError(f"a slot holds 1 to {self.stride} bytes, not {length}")
        slot.len, slot.flags = length, MOREFRAG if more else 0
        return self._bytes(slot, length)

    def submit(self, n: int) -> None:
        """Hands the first n slots to the switch: whole frames."""
        check(quick.uvala_submit(self._queue, n))


class RxRing(_Ring):
    """A receive ring: look, read the slots, release them."""

    def __getitem__(self, i: int) -> memoryview:
        """The bytes received in slot i, until it is released."""
        slot = self._slot(i)
        return self._bytes(slot, slot.len).toreadonly()

    def __iter__(self) -> Iterator[memoryview]:
        return (self[i] for i in range(len(self)))

    def more(self, i: int) -> bool:
        """Whether the frame of slot i goes on in the next one."""
        return bool(self._slot(i).flags & MOREFRAG)

    def release(self, n: int) -> None:
        """Gives the first n slots back to the switch."""
        check(quick.uvala_release(self._queue, n))

    def forward(self, tx: TxRing, most: int) -> int:
        """Moves whole frames to another ring, about `most` slots of them, and hands over both
        sides; returns the number of slots. Inside a trust group nothing is copied."""
        return check(quick.uvala_forward(self._queue, tx._queue, most))


_AnyRing = TypeVar("_AnyRing", TxRing, RxRing)


class Port:
    """A port of a switch, or an end of a pipe. One thread or task receives at a time, and one
    sends. `with` closes it when the switch has taken what was sent, or a second later."""

    def __init__(
        self,
        name: str,
        *,
        dir: Optional[str] = None,
        group: Optional[str] = None,
        group_memory: int = 0,
        tx_rings: int = 0,
        rx_rings: int = 0,
        tx_slots: int = 0,
        rx_slots: int = 0,
        existing: bool = False,
        client: Optional[str] = None,
    ) -> None:
        """Opens the port called name, like "vale0:a"; creates switch and port where there are none.

        dir: directory of the daemon's socket. group: trust group, whose ports share memory;
        group_memory: its bytes, if the port is its first. tx_rings, rx_rings, tx_slots, rx_slots:
        number of rings, and of slots in each. existing: create nothing. client: what listings call
        the program. 0 and None stand for the defaults.
        """
        numbers = {
            "group_memory": group_memory, "tx_rings": tx_rings, "rx_rings": rx_rings,
            "tx_slots": tx_slots, "rx_slots": rx_slots,
        }
        options = Options(
            size=ctypes.sizeof(Options),
            dir=None if dir is None else os.fsencode(dir),
            group=None if group is None else group.encode(),
            flags=EXISTING if existing else 0,
            client=(client or os.path.basename(sys.argv[0]) or "python").encode(),
            **numbers,
        )
        for key, number in numbers.items():
            if getattr(options, key) != number:
                raise ValueError(f"{key} = {number} is out of range")
        self.name = name
        self._open: Optional[Doorbell] = Doorbell(Handle(name, options))
        self.tx = self._rings(TxRing, quick.uvala_tx)
        self.rx = self._rings(RxRing, quick.uvala_rx)
        self._frame = ctypes.create_string_buffer(FRAME_MAX)

    def _rings(self, ring: type[_AnyRing], nth: Any) -> tuple[_AnyRing, ...]:
        rings: list[_AnyRing] = []
        while queue := nth(self._handle, len(rings)):
            rings.append(ring(self._handle, queue))
        return tuple(rings)

    @property
    def _doorbell(self) -> Doorbell:
        if self._open is None:
            raise ValueError(f"{self.name} is closed")
        return self._open

    @property
    def _handle(self) -> Handle:
        return self._doorbell.handle

    # ---- frames, copied ----

    def _send(self, frame: bytes) -> bool:
        return check(quick.uvala_send(self._handle, frame, len(frame), 0)) == 1

    def send(self, frame: Bytes, timeout: Optional[float] = None) -> bool:
        """Sends a frame on the first ring; False: there was no room within the time."""
        frame = bytes(frame)
        deadline = _deadline(timeout)
        while not self._send(frame):
            if not self.wait(TX, self._slots_of(frame), _left(deadline)):
                return False
        return True

    def recv(self, timeout: Optional[float] = None) -> Optional[bytes]:
        """Receives a frame from any ring; None: none came within the time."""
        deadline = _deadline(timeout)
        while not (size := check(quick.uvala_recv(self._handle, self._frame, FRAME_MAX, 0))):
            if not self.wait(RX, 1, _left(deadline)):
                return None
        return ctypes.string_at(self._frame, size)

    def drain(self, timeout: Optional[float] = None) -> bool:
        """Waits until the switch has taken all that was sent; False: not within the time."""
        deadline = _deadline(timeout)
        while not check(quick.uvala_drain(self._handle, 0)):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(PAUSE)
        return True

    def _slots_of(self, frame: bytes) -> int:
        return max(1, -(-len(frame) // self.tx[0].stride))

    # ---- waiting ----

    def wait(self, what: int = RX, slots: int = 1, timeout: Optional[float] = None) -> bool:
        """Waits for a frame on any receive ring (RX), or for that many free slots on a transmit
        ring (TX); False: the time is over. Signals are handled meanwhile."""
        return self._doorbell.wait(what, slots, timeout)

    async def wait_async(self, what: int = RX, slots: int = 1) -> None:
        """The same in asyncio, for ever: asyncio.wait_for() bounds it."""
        await self._doorbell.wait_async(what, slots)

    async def send_async(self, frame: Bytes) -> None:
        """Sends a frame on the first ring, when there is room."""
        frame = bytes(frame)
        while not self._send(frame):
            await self.wait_async(TX, self._slots_of(frame))

    async def recv_async(self) -> bytes:
        """Receives a frame from any ring."""
        while (frame := self.recv(0)) is None:
            await self.wait_async(RX)
        return frame

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield await self.recv_async()
            # A ring that never runs dry leaves other tasks their turn.
            await asyncio.sleep(0)

    # ---- the end ----

    def close(self) -> None:
        """Detaches from the port, when the last memoryview of its frames is gone. What was sent
        and not yet taken is lost: drain() first. No call may wait meanwhile."""
        for ring in (*self.tx, *self.rx):
            ring._close()
        self._open = None

    def __enter__(self: PortType) -> PortType:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._open is None:
            return
        try:
            self.drain(DRAIN if kind is None else 0)
        except Error as failure:
            # Where the daemon is gone, so is what it did not take.
            if failure.code not in (ErrorCode.LOST, ErrorCode.DELETED):
                raise
        finally:
            self.close()


#!/usr/bin/env python3
"""Sends or counts frames in the rings themselves: no frame is copied to or from Python.

    make wheel && pip install target/wheel/*.whl
    python3 examples/python/rings.py receive vale0:to 100000
    python3 examples/python/rings.py send vale0:from 100000
"""
import sys

import uvala

HEAD = bytes.fromhex("020000000002 020000000001 88b5")


def send(port, count):
    ring, sent = port.tx[0], 0
    while sent < count:
        slots = min(ring.look(), count - sent)
        for i in range(slots):
            frame = ring.frame(i, 60)
            frame[:14] = HEAD
            frame[14:18] = (sent + i).to_bytes(4, "big")
        ring.submit(slots)
        sent += slots
        if not slots:
            port.wait(uvala.TX, 16)
    port.drain()
    print(f"sent {sent} frames")


def receive(port, count):
    ring, seen, total = port.rx[0], 0, 0
    while seen < count:
        slots = ring.look()
        for frame in ring:
            seen, total = seen + 1, total + len(frame)
        ring.release(slots)
        if not slots:
            port.wait(uvala.RX)
    print(f"{seen} frames, {total} bytes")


def main():
    what = {"send": send, "receive": receive}[sys.argv[1]]
    with uvala.Port(sys.argv[2], client=f"rings {sys.argv[1]}") as port:
        what(port, int(sys.argv[3]))


if __name__ == "__main__":
    main()

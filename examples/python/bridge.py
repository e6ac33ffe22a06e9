#!/usr/bin/env python3
"""Joins two ports in asyncio: what arrives at one leaves by the other, in both directions.

    make wheel && pip install target/wheel/*.whl
    python3 examples/python/bridge.py vale0:left vale1:right
"""
import asyncio
import sys

import uvala


async def carry(source, sink):
    async for frame in source:
        await sink.send_async(frame)


async def main():
    with uvala.Port(sys.argv[1]) as left, uvala.Port(sys.argv[2]) as right:
        await asyncio.gather(carry(left, right), carry(right, left))


if __name__ == "__main__":
    asyncio.run(main())

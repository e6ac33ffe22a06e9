#!/usr/bin/env python3
"""Sends every frame back to its sender, also after a restart of the daemon.

    make wheel && pip install target/wheel/*.whl
    python3 examples/python/echo.py vale0:echo
"""
import sys
import time

import uvala

OWN = bytes.fromhex("020000000003")
# What a daemon that comes back heals.
AWAY = (uvala.ErrorCode.LOST, uvala.ErrorCode.NODAEMON)


def echo(port):
    while True:
        frame = port.recv()
        port.send(frame[6:12] + OWN + frame[12:])


def main():
    while True:
        try:
            with uvala.Port(sys.argv[1]) as port:
                echo(port)
        except uvala.Error as error:
            if error.code not in AWAY:
                raise
            print(error, file=sys.stderr)
            time.sleep(0.2)


if __name__ == "__main__":
    main()

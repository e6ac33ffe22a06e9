#!/usr/bin/env python3
"""A function in Python: counts frames by EtherType and passes them on.

    uvala port add vale0:count --service count
    LD_LIBRARY_PATH=target/release python3 examples/nf/count.py vale0:count
"""
import collections
import ctypes
import sys


class Frame(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(ctypes.c_uint8)), ("len", ctypes.c_uint32),
                ("room", ctypes.c_uint32), ("meta", ctypes.c_uint64),
                ("target", ctypes.c_uint32), ("pad", ctypes.c_uint32)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("dir", ctypes.c_char_p), ("group", ctypes.c_char_p),
                ("tx_rings", ctypes.c_uint16), ("rx_rings", ctypes.c_uint16),
                ("tx_slots", ctypes.c_uint32), ("rx_slots", ctypes.c_uint32),
                ("extra_bufs", ctypes.c_uint32), ("yields", ctypes.c_int32),
                ("flags", ctypes.c_uint32), ("client", ctypes.c_char_p)]


NEXT = 0
Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Frame))
uvala = ctypes.CDLL("libuvala.so")
uvala.uvala_errmsg.restype = ctypes.c_char_p
uvala.uvala_nf_step.argtypes = [ctypes.c_void_p, Callback, ctypes.c_void_p, ctypes.c_int64]

seen = collections.Counter()


@Callback
def count(_, frame):
    data = frame.contents.data
    seen[data[12] << 8 | data[13]] += 1
    return NEXT


def main():
    port = ctypes.c_void_p()
    options = Options(size=ctypes.sizeof(Options), group=b"nf")
    name = sys.argv[1].encode()
    if uvala.uvala_open(name, ctypes.byref(options), ctypes.byref(port)) < 0:
        sys.exit(uvala.uvala_errmsg().decode())
    while True:
        done = uvala.uvala_nf_step(port, count, None, 1_000_000)
        if done < 0:
            sys.exit(uvala.uvala_errmsg().decode())
        if done == 0:
            print({f"0x{kind:04x}": frames for kind, frames in seen.items()}, flush=True)


if __name__ == "__main__":
    main()

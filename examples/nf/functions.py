"""What a function in Python needs of libuvala: frames, actions, and the calls on ports.

    LD_LIBRARY_PATH=target/release python3 examples/nf/count.py vale0:count
"""
import ctypes
import sys

NEXT, DROP, SERVICE, PORT, HOLD = range(5)


class Frame(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(ctypes.c_uint8)), ("len", ctypes.c_uint32),
                ("room", ctypes.c_uint32), ("meta", ctypes.c_uint64),
                ("target", ctypes.c_uint32), ("held", ctypes.c_uint32)]

    def own(self):
        """The functions' own 16 bytes, which travel with the frame, also with one that is held;
        None where the frame reaches into them."""
        at = self.room - 16
        if self.len > at:
            return None
        return (ctypes.c_uint8 * 16).from_address(ctypes.addressof(self.data.contents) + at)


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("dir", ctypes.c_char_p), ("group", ctypes.c_char_p),
                ("tx_rings", ctypes.c_uint16), ("rx_rings", ctypes.c_uint16),
                ("tx_slots", ctypes.c_uint32), ("rx_slots", ctypes.c_uint32),
                ("extra_bufs", ctypes.c_uint32), ("yields", ctypes.c_int32),
                ("flags", ctypes.c_uint32), ("client", ctypes.c_char_p),
                ("stop", ctypes.c_void_p)]


Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Frame))
uvala = ctypes.CDLL("libuvala.so")
uvala.uvala_errmsg.restype = ctypes.c_char_p
uvala.uvala_nf_step.argtypes = [ctypes.c_void_p, Callback, ctypes.c_void_p, ctypes.c_int64]
uvala.uvala_nf_send_on.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int,
                                   ctypes.c_uint32]


for find in uvala.uvala_nf_service, uvala.uvala_nf_port, uvala.uvala_nf_chain:
    find.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
for show in uvala.uvala_nf_count, uvala.uvala_nf_gauge:
    show.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64]


class Function:
    """A function on a port; frame() is asked about each frame and returns an action."""

    def __init__(self, name):
        self.port = ctypes.c_void_p()
        options = Options(size=ctypes.sizeof(Options), group=b"nf")
        check(uvala.uvala_open(name.encode(), ctypes.byref(options), ctypes.byref(self.port)))
        self.callback = Callback(lambda _, frame: self.frame(frame.contents))

    def step(self, timeout_us):
        """Handles a batch; returns its number of slots, 0 when the time is over."""
        return check(uvala.uvala_nf_step(self.port, self.callback, None, timeout_us))

    def send_on(self, held, action=NEXT, target=0):
        """Sends on what frame() held: frame.held, which it kept, and returned HOLD."""
        check(uvala.uvala_nf_send_on(self.port, held, action, target))

    def service_number(self, name):
        """For frame.target with SERVICE; ask before the first step."""
        return check(uvala.uvala_nf_service(self.port, name.encode()))

    def port_number(self, name):
        """For frame.target with PORT, of a port that a program holds: "vale0:out"."""
        return check(uvala.uvala_nf_port(self.port, name.encode()))

    def chain_number(self, name):
        """As it stands in bits 44 to 51 of frame.meta."""
        return check(uvala.uvala_nf_chain(self.port, name.encode()))

    def count(self, name, count):
        """Shows what was counted since the function began: uvala nf list, nf top, metrics."""
        check(uvala.uvala_nf_count(self.port, name.encode(), count))

    def gauge(self, name, gauge):
        """The same of what there is now, which also shrinks."""
        check(uvala.uvala_nf_gauge(self.port, name.encode(), gauge))


def check(result):
    if result < 0:
        sys.exit(uvala.uvala_errmsg().decode())
    return result

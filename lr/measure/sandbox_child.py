"""The first process in the sandbox: it limits itself, then becomes the program.

`sandbox.py` runs it as a script with one JSON argument; it imports nothing of this
package. It limits memory (and so the number of threads), CPU time, file size and open
files. On Linux a seccomp filter also refuses new processes (but allows threads) and
what bubblewrap alone allows: sockets, tracing, System V memory, new namespaces. If a
requested limit cannot be set, it exits with code 97 before the program begins.
Reference: man 2 seccomp."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from typing import Any

BROKEN = 97  # Exit code: the sandbox could not be built.
CALLS = {
    # machine: (its audit number, clone, (socket, socketpair, ptrace, unshare, setns,
    # shmget, semget, msgget, and on x86 fork and vfork))
    "x86_64": (0xC000003E, 56, (41, 53, 101, 272, 308, 29, 64, 68, 57, 58)),
    "aarch64": (0xC00000B7, 220, (198, 199, 117, 97, 268, 194, 190, 186)),
}
IO_URING, CLONE3, CLONE_THREAD, X32_CALLS = 425, 435, 0x10000, 0x40000000
EPERM, ENOSYS = 1, 38
NO_NEW_PRIVILEGES, PARENT_DEATH_SIGNAL, SECCOMP, FILTER = 38, 1, 22, 2


def main() -> None:
    """Set the limits that the argument describes, then run the program."""
    asked = json.loads(sys.argv[1])
    try:
        limit(asked["seconds"], asked["memory_mb"], strictly=asked["strictly"])
        if sys.platform == "linux":
            refuse_calls(strictly=asked["strictly"])
    except Exception as error:  # no program may run in an incomplete sandbox
        os.write(2, f"the sandbox could not be built: {error}\n".encode())
        os._exit(BROKEN)
    os.execv(sys.executable, [sys.executable, "-I", "-B", asked["program"]])


def limit(seconds: float, memory_mb: int, *, strictly: bool) -> None:
    """Limit this process. `strictly`: raise if a limit cannot be set (macOS lacks
    some)."""
    import resource

    wanted = {
        "AS": memory_mb << 20,
        "CPU": int(seconds) + 1,
        "FSIZE": 16 << 20,
        "NOFILE": 64,
    }
    for name, value in {**wanted, "CORE": 0}.items():
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(which, (value, value))
        except (OSError, ValueError):
            if strictly:
                raise


def refuse_calls(*, strictly: bool) -> None:
    """Install a seccomp filter. The calls in `CALLS` fail with EPERM, and so does
    `clone` unless it makes a thread. `clone3`, whose flags a filter cannot see, fails
    with ENOSYS, so that libc falls back to `clone`.

    A filter is a BPF program of (operation, jump if true, jump if false, constant):
    load a field of the call, compare, jump, return a decision."""
    machine = os.uname().machine
    if machine not in CALLS:
        if strictly:
            raise OSError(f"the system calls of {machine} are not known here")
        return
    architecture, clone, forbidden = CALLS[machine]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x50000
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill)]
    program += [(load, 0, 0, 0), (at_least, 0, 1, X32_CALLS), (give, 0, 0, kill)]
    for number in (*forbidden, IO_URING):
        program += [(equal, 0, 1, number), (give, 0, 0, refuse | EPERM)]
    program += [(equal, 0, 1, CLONE3), (give, 0, 0, refuse | ENOSYS)]
    # clone: load its flags, the low half of its first argument
    program += [(equal, 0, 3, clone), (load, 0, 0, 16), (any_bit, 1, 0, CLONE_THREAD)]
    program += [(give, 0, 0, refuse | EPERM), (give, 0, 0, allow)]
    code = ctypes.create_string_buffer(
        b"".join(struct.pack("<HBBI", *row) for row in program)
    )
    filters = struct.pack("@HP", len(program), ctypes.addressof(code))
    prctl: Any = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PARENT_DEATH_SIGNAL, 9, 0, 0, 0)
    done = (
        prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
        and prctl(SECCOMP, FILTER, filters, 0, 0) == 0
    )
    if strictly and not done:
        raise OSError(ctypes.get_errno(), "no seccomp filter can be set")


if __name__ == "__main__":
    main()

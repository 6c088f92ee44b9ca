"""The inside of the sandbox: takes rights away from this process, then becomes the Python that runs
a program nobody has read.

Run as a script by `sandbox.py`, with one JSON argument; imports nothing of this package. In order:

1. limits: memory (which also bounds the threads), CPU time, size of files, open files;
2. namespaces, if asked for: a user namespace of its own, in it no network at all, no view of other
   processes' signals (PID), own IPC and own mounts;
3. writing: with Landlock only below the folder, or, in the own mounts, every file system but the
   folder read-only;
4. capabilities: none, whatever the user;
5. system calls (seccomp): no sockets, no new processes (threads are allowed), no signals to others,
   no tracing, no new namespaces, no changing of modes, owners and times of files, which Landlock
   does not know.

Any of these that was asked for and fails ends the process with code 97 before the program begins;
what may be asked for was found out before, by a probe. With none asked for, the limits alone hold,
as far as the system knows them. References: man 7 landlock, man 2 seccomp, man 7 user_namespaces.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any

BROKEN = 97
"""Exit code: the sandbox could not be built."""
NEW_NAMESPACES = (
    0x10000000 | 0x40000000 | 0x20000000 | 0x00020000 | 0x08000000
)  # user, net, PID, mount, IPC
RDONLY, REMOUNT, BIND, REC, PRIVATE = 1, 32, 4096, 16384, 1 << 18
MOUNT_FLAGS = {
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "noatime": 1024,
    "nodiratime": 2048,
    "relatime": 1 << 21,
}
NO_NEW_PRIVILEGES, PARENT_DEATH_SIGNAL, SECCOMP_FILTER = 38, 1, (22, 2)
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
WRITE_RIGHTS = {
    1: 0x1FF2,
    2: 0x3FF2,
    3: 0x7FF2,
}  # by ABI: everything but execute, read a file, read a folder; refer; truncate
# what a program may not call; clone3 fails as unknown, so that libc falls back to clone, whose
# flags can be seen
ARCHITECTURES = {
    "x86_64": (
        0xC000003E,
        {"clone": 56, "clone3": 435},
        (41, 53, 57, 58, 62, 200, 234, 129, 297, 101, 310, 311, 272, 308),
        (90, 91, 92, 93, 94, 132, 188, 189, 190, 197, 198, 199, 235, 260, 261, 268, 280),
    ),
    "aarch64": (
        0xC00000B7,
        {"clone": 220, "clone3": 435},
        (198, 199, 129, 130, 131, 138, 240, 117, 270, 271, 97, 268),
        (5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88),
    ),
}
"""By machine: its number; how processes are cloned; socket, socketpair, fork, vfork (x86 only),
kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, ptrace, process_vm_readv,
process_vm_writev, unshare, setns; the chmod, chown, utime and xattr families."""
FORBIDDEN_EVERYWHERE = (424, 425, 426, 427, 452, 463, 466)
"""pidfd_send_signal, io_uring (which makes sockets without the call), fchmodat2, setxattrat,
removexattrat.
"""
DROP_CAPABILITY = 24
CLONE_THREAD = 0x10000
EPERM, ENOSYS = 1, 38


def main() -> None:
    """Build the sandbox that the argument describes, then run the program in it."""
    asked = json.loads(sys.argv[1])
    walls = asked["namespaces"] or asked["landlock"] or asked["seccomp"]
    try:
        _limit(asked, strictly=walls)
        if walls:
            _build(asked, ctypes.CDLL(None, use_errno=True))
        os.chdir(asked["folder"])
    except Exception as error:  # nothing may run in half a sandbox
        os.write(2, f"the sandbox could not be built: {error}\n".encode())
        os._exit(BROKEN)
    os.execv(sys.executable, [sys.executable, "-I", "-B", asked["program"]])


def _build(asked: dict[str, Any], libc: Any) -> None:
    _require(
        libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0),
        "the parent's death cannot be heard of",
    )
    if asked["namespaces"]:
        _enter_namespaces(libc)
    _require(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "rights cannot be given up")
    if asked["landlock"]:
        _write_below(libc, asked["folder"])
    elif asked["namespaces"]:
        _mount_read_only(libc, asked["folder"])
    for capability in range(64):
        libc.prctl(
            DROP_CAPABILITY, capability, 0, 0, 0
        )  # fails for those who have none to drop, and for numbers that are none
    if asked["seccomp"]:
        _forbid_calls(libc)


def _limit(asked: dict[str, Any], *, strictly: bool) -> None:
    import resource  # not on every system; there is no sandbox on those

    memory, seconds = int(asked["memory_mb"]) << 20, int(asked["seconds"]) + 1
    limits = {"AS": memory, "CPU": seconds, "FSIZE": 16 << 20, "NOFILE": 64, "CORE": 0}
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(which, (limit, limit))
        except (OSError, ValueError):  # not every system has every limit
            if strictly:
                raise


def _enter_namespaces(libc: Any) -> None:
    """Go on as the first grandchild in namespaces of its own; the two processes in between wait,
    and pass its exit code on.

    The child is process 1 of the new PID namespace: when it ends, the kernel ends everything in
    there.
    """
    user, group = os.getuid(), os.getgid()
    _require(libc.unshare(NEW_NAMESPACES), "no user namespace")
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", file).write_text(text)
    for _ in range(2):
        child = os.fork()
        if child:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
        _require(
            libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0),
            "the parent's death cannot be heard of",
        )


def _write_below(libc: Any, folder: str) -> None:
    """Landlock: every way of writing is forbidden but below `folder`."""
    version = libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    _require(0 if version > 0 else -1, "no Landlock")
    rights = WRITE_RIGHTS[min(version, 3)]
    ruled = struct.pack("<Q", rights)
    rules = libc.syscall(LANDLOCK_CREATE, ruled, len(ruled), 0)
    _require(rules, "no Landlock rules")
    for path, allowed in ((folder, rights), ("/dev/null", rights & 0x4002)):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        _require(
            libc.syscall(LANDLOCK_ADD, rules, 1, struct.pack("<Qi", allowed, place), 0),
            f"no rule for {path}",
        )
        os.close(place)
    _require(libc.syscall(LANDLOCK_RESTRICT, rules, 0), "Landlock cannot be entered")
    os.close(rules)


def _mount_read_only(libc: Any, folder: str) -> None:
    """In mounts of our own: `folder` on a mount of its own, all others read-only."""
    inside = folder.encode()
    _require(libc.mount(None, b"/", None, REC | PRIVATE, None), "the mounts cannot be made private")
    _require(libc.mount(inside, inside, None, BIND, None), "the folder cannot be mounted")
    lines = [
        line.split(" ")
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    ]
    for place, options in (
        (line[4].encode().decode("unicode_escape"), line[5].split(",")) for line in lines
    ):
        if place == folder or "ro" in options:
            continue
        flags = sum(MOUNT_FLAGS.get(option, 0) for option in options)
        _require(
            libc.mount(None, place.encode(), None, REMOUNT | BIND | RDONLY | flags, None),
            f"{place} stays writable",
        )
    os.chdir(folder)


def _forbid_calls(libc: Any) -> None:
    """A seccomp filter: the numbers in `ARCHITECTURES` fail with EPERM, clone too unless it makes a
    thread, clone3 with ENOSYS.

    In the language of BPF: load the architecture; kill if foreign; load the number; per number a
    jump; load the flags of clone.
    """
    machine = os.uname().machine
    _require(
        0 if machine in ARCHITECTURES else -1, f"the system calls of {machine} are not known here"
    )
    architecture, clones, *forbidden = ARCHITECTURES[machine]
    load, equal, any_set, give = 0x20, 0x15, 0x45, 0x06
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x50000
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill), (load, 0, 0, 0)]
    if machine == "x86_64":  # the x32 calls carry this bit in their number
        program += [(any_set, 0, 1, 0x40000000), (give, 0, 0, kill)]
    for number in (*forbidden[0], *forbidden[1], *FORBIDDEN_EVERYWHERE):
        program += [(equal, 0, 1, number), (give, 0, 0, refuse | EPERM)]
    program += [(equal, 0, 1, clones["clone3"]), (give, 0, 0, refuse | ENOSYS)]
    program += [(equal, 0, 3, clones["clone"]), (load, 0, 0, 16), (any_set, 1, 0, CLONE_THREAD)]
    program += [(give, 0, 0, refuse | EPERM), (give, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in program))
    filters = struct.pack("@HP", len(program), ctypes.addressof(code))
    _require(libc.prctl(*SECCOMP_FILTER, filters, 0, 0), "no seccomp filter")


def _require(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what} ({os.strerror(ctypes.get_errno())})")


if __name__ == "__main__":
    main()

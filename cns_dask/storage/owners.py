"""Who made a file: a process, told from others of this machine and of other machines, and whether it still lives."""

import json
import os
import platform
import uuid
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """What tells this process from all others."""
    import psutil

    return {
        "host": platform.node(),
        "boot": _boot(),
        "pid": os.getpid(),
        "born": psutil.Process().create_time(),
        "run": uuid.uuid4().hex,
    }


def lives_here(content: bytes) -> bool | None:
    """Whether the process in a file lives; None if it is not on this machine, or its clock was set meanwhile."""
    import psutil

    owner = parsed(content)
    if owner.get("host") != platform.node() or owner.get("boot") != _boot():
        return None
    try:
        process = psutil.Process(int(owner["pid"]))
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        same = abs(process.create_time() - float(owner.get("born", 0))) < 1
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False
    return True if same else None


def parsed(content: bytes | None) -> dict[str, Any]:
    """What such a file says; nothing if it is broken."""
    try:
        owner = json.loads(content or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _boot() -> str:
    """What tells this machine, and its containers, from others with the same name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""

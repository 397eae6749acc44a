"""What a benchmark ran on: times mean nothing without it."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil


def cpu_model() -> str:
    """Name of the processor as Linux tells it, else as Python does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use."""
    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()


def machine() -> str:
    """One line: cores, memory, processor, system, Python."""
    memory = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()}, Python {platform.python_version()}"
    return f"{cores()} cores, {memory:.0f} GiB, {cpu_model()}, {system}"

"""Programs that tests run beside them."""

import os
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress


def local_cluster(n_workers=2, **options):
    """Worker processes of one thread each that listen on this machine only."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=60,
        **options,
    )


def free_ports(count):
    """Ports on which nobody listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def background(*words, log=subprocess.DEVNULL, **options):
    """Run a program, and end it with all that it has started."""
    with subprocess.Popen(list(map(str, words)), stdout=log, stderr=log, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, number)
                    process.wait(10)


def wait_until(condition, what, seconds=600):
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {seconds} s"
        time.sleep(0.2)


def answers(port):
    """Whether someone listens on a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True

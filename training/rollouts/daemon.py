"""Work in threads that end with the process: an interrupt or an error does not wait for calls of the network."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from threading import Thread
from typing import Any, TypeVar

Made = TypeVar("Made")


def in_daemon(work: Callable[[], Made], name: str, free: AbstractContextManager[Any] = nullcontext()) -> Future[Made]:
    """The result of `work`, which begins in a thread of its own once it enters `free`, such as a semaphore."""
    future: Future[Made] = Future()

    def run() -> None:
        with free:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except StopIteration as error:  # which asyncio's futures refuse, so whoever waits would hang
                    future.set_exception(RuntimeError(f"raised {error!r}"))
                except BaseException as error:  # raised again by whoever asks for the result
                    future.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return future

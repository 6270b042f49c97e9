"""Signals while `streamq bench` cleans up wait until that is done; elsewhere they end it at once."""

from __future__ import annotations

import signal
import threading

import pytest

from streamq.bench.interrupts import put_off, sigterm_ends


def clean_up(number, done, error=None):
    with put_off():
        signal.raise_signal(number)
        done.append(1)
        signal.raise_signal(number)
        done.append(2)
        if error is not None:
            raise error


def test_what_is_cleaned_up_comes_to_its_end_first():
    done = []
    with pytest.raises(KeyboardInterrupt):
        clean_up(signal.SIGINT, done)
    assert done == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_ends_as_an_exit_and_is_put_off_too():
    before = signal.getsignal(signal.SIGTERM)
    done = []
    with pytest.raises(SystemExit) as ended, sigterm_ends():
        clean_up(signal.SIGTERM, done)
    assert (ended.value.code, done) == (143, [1, 2])
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_error_is_not_hidden_by_a_signal():
    with pytest.raises(ValueError, match="mine"):
        clean_up(signal.SIGINT, [], ValueError("mine"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_leave_signals_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def run():
        with sigterm_ends(), put_off():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]

"""Replies that have come already are taken at once, and nothing is lost or made up."""

from __future__ import annotations

from types import SimpleNamespace

import hiredis
import pytest
import redis.exceptions as failures

from streamq._drivers.replies import take

NOTHING = object()


def connection(received, **more):
    """One whose reader has received this, as redis-py sets it up."""

    def error(message):
        kinds = {"LOADING": failures.BusyLoadingError, "ERR": failures.ConnectionError}
        return kinds.get(message.split()[0], failures.ResponseError)(message)

    reader = hiredis.Reader(replyError=error, notEnoughData=NOTHING, **more)
    reader.feed(received)
    return SimpleNamespace(_parser=SimpleNamespace(_reader=reader))


def test_all_that_are_there():
    replies = [b"first"]
    take(connection(b"$1\r\na\r\n:2\r\n$-1\r\n*2\r\n$1\r\nb\r\n*0\r\n"), replies, 5)
    assert replies == [b"first", b"a", 2, None, [b"b", []]]


def test_no_more_than_were_asked_for():
    one = connection(b":1\r\n:2\r\n:3\r\n")
    replies = [0]
    take(one, replies, 3)
    assert replies == [0, 1, 2]
    take(one, replies, 4)
    assert replies == [0, 1, 2, 3]


def test_one_that_has_come_in_part_is_left_to_its_reader():
    one = connection(b":1\r\n$5\r\nhel")
    replies = []
    take(one, replies, 2)
    assert replies == [1]
    one._parser._reader.feed(b"lo\r\n")
    take(one, replies, 2)
    assert replies == [1, b"hello"]


def test_what_the_server_refuses_is_a_reply():
    replies = []
    take(connection(b":1\r\n-WRONGTYPE no\r\n-LOADING wait\r\n:2\r\n"), replies, 4)
    assert [type(reply) for reply in replies] == [int, failures.ResponseError, failures.BusyLoadingError, int]


def test_what_it_says_of_the_connection_ends_it():
    replies = []
    with pytest.raises(failures.ConnectionError, match="max number of clients"):
        take(connection(b":1\r\n-ERR max number of clients reached\r\n"), replies, 2)
    assert replies == [1]


@pytest.mark.parametrize("one", [SimpleNamespace(), SimpleNamespace(_parser=SimpleNamespace(_reader=object()))])
def test_without_such_a_reader_each_is_asked_for(one):
    replies = [1]
    take(one, replies, 2)
    assert replies == [1]

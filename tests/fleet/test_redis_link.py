"""The connections of a fleet to Redis: a lost one is made again, and no answer is taken for another's."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate.fleet import redis_link
from callgate.fleet.redis_link import RedisLink, read_reply
from tests.harness.needs import needs
from tests.harness.redis import redis_server

pytestmark = [pytest.mark.anyio, needs("redis-server", "module:redis")]


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with redis_server(tmp_path) as address:
        yield address


@pytest.fixture
async def link(url: str) -> AsyncIterator[RedisLink]:
    opened = RedisLink(url)
    yield opened
    await opened.close()


async def test_a_command_goes_on_over_another_connection_where_its_own_was_lost(link: RedisLink, url: str) -> None:
    other = RedisLink(url)
    mine = await link.command("CLIENT", "ID")
    await other.command("CLIENT", "KILL", "ID", str(mine))
    assert await link.command("ECHO", "a") == b"a"
    assert await link.command("CLIENT", "ID") != mine
    await other.close()


async def test_many_at_once_each_get_their_own_answer_after_an_error_and_a_cancelled_one_too(link: RedisLink) -> None:
    import redis

    with pytest.raises(redis.ResponseError):
        await link.command("NONSENSE")
    asked = [asyncio.create_task(link.command("ECHO", str(number))) for number in range(20)]
    await asyncio.sleep(0)
    asked[0].cancel()
    assert (await asyncio.gather(*asked, return_exceptions=True))[1:] == [
        str(number).encode() for number in range(1, 20)
    ]


async def test_an_answer_that_comes_too_late_is_dropped(
    link: RedisLink, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await link.command("ECHO", "first") == b"first"
    monkeypatch.setattr(redis_link, "PATIENCE", 0.1)
    other = RedisLink(url)
    await other.command("CLIENT", "PAUSE", "60000", "WRITE")
    with pytest.raises(TimeoutError):
        await link.command("SET", "late", "1")
    await other.command("CLIENT", "UNPAUSE")
    monkeypatch.setattr(redis_link, "PATIENCE", 5.0)
    assert await link.command("ECHO", "next") == b"next"
    await other.close()


async def test_what_is_published_is_handed_on_until_the_connection_is_lost(link: RedisLink) -> None:
    import redis

    heard: list[bytes] = []
    news = asyncio.Event()

    def hear(data: bytes) -> None:
        heard.append(data)
        news.set()

    listening = asyncio.create_task(link.listen("channel", hear))
    async with asyncio.timeout(30):
        while not await link.command("PUBLISH", "channel", b"\xff\x00"):  # noqa: ASYNC110 - asks a server
            await asyncio.sleep(0.01)
        await news.wait()
    assert heard == [b"\xff\x00"]
    await link.command("CLIENT", "KILL", "TYPE", "pubsub")
    with pytest.raises((redis.RedisError, OSError)):
        await listening


async def test_an_unexpected_error_while_reading_is_a_lost_connection(link: RedisLink) -> None:
    wire = await link._connected()
    waiting = wire.command(("BLPOP", "nothing", "0"))
    wire.connection_lost(ValueError("odd"))
    for each in (waiting, wire.lost):
        with pytest.raises(ConnectionError, match="odd"):
            await each
    await wire.close()


async def test_what_is_sent_unanswered_arrives_and_over_another_connection_where_its_own_was_lost(
    link: RedisLink,
) -> None:
    over = await link.send("RPUSH", "list", "1")
    assert await link.send("NONSENSE") is over, "and of an error nobody is told"
    assert await link.send("RPUSH", "list", "2") is over
    await until_listed(link, [b"1", b"2"])
    assert not over.done()
    mine = await link.command("CLIENT", "ID")
    await link.command("CLIENT", "KILL", "SKIPME", "yes")
    await asyncio.wait([over], timeout=60)
    assert isinstance(over.exception(), OSError)
    assert await link.send("RPUSH", "list", "3") is not over
    await until_listed(link, [b"1", b"2", b"3"])
    over = await link.send("RPUSH", "list", "4")
    await until_listed(link, [b"1", b"2", b"3", b"4"])
    await link.renew()
    await asyncio.wait([over], timeout=60)
    assert await link.send("RPUSH", "list", "5") is not over
    await until_listed(link, [b"1", b"2", b"3", b"4", b"5"])
    assert await link.command("CLIENT", "ID") == mine, "that for commands is another"


async def test_unwanted_replies_of_the_server_are_ignored(link: RedisLink, url: str) -> None:
    await link.command("ACL", "SETUSER", "loud", "on", "nopass", "~*", "+rpush", "+lrange")
    loud = RedisLink(url.replace("//", "//loud:x@"))
    for number in ("1", "2"):
        _ = await loud.send("RPUSH", "list", number)
    await until_listed(loud, [b"1", b"2"])
    await loud.close()


async def until_listed(link: RedisLink, expected: list[bytes]) -> None:
    async with asyncio.timeout(30):
        while await link.command("LRANGE", "list", "0", "-1") != expected:  # noqa: ASYNC110 - asks a server
            await asyncio.sleep(0.01)


def test_a_reply_is_read_wherever_its_bytes_are_cut() -> None:
    whole = b"*4\r\n$7\r\nmess\r\ne\r\n:-12\r\n$-1\r\n*1\r\n+OK\r\n"
    assert read_reply(b"xx" + whole + b"+next", 2) == ([b"mess\r\ne", -12, None, [b"OK"]], 2 + len(whole))
    assert [read_reply(whole[:length], 0) for length in range(len(whole))] == [None] * len(whole)
    with pytest.raises(ValueError, match="begins with"):
        read_reply(b"?1\r\n", 0)


@pytest.mark.parametrize("reply", [b"*1\r\n" * 100_000, b"$134217728\r\n", b"*3\r\n$7\r\nmessage\r\n$9999999\r\n"])
def test_what_is_too_long_or_too_deep_is_refused_by_its_beginning(reply: bytes) -> None:
    with pytest.raises(ValueError, match="Redis sent a reply"):
        read_reply(reply, 0)


async def test_a_message_without_end_is_a_lost_connection_and_not_kept(link: RedisLink, url: str) -> None:
    taken: list[bytes] = []
    listening = asyncio.create_task(link.listen("channel", taken.append))
    other = RedisLink(url)
    while not await other.command("PUBLISH", "channel", b"short"):
        pass
    assert await other.command("PUBLISH", "channel", b"x" * (redis_link.MAX_REPLY + 1)) == 1
    with pytest.raises(ConnectionError, match="a reply of"):
        await listening
    assert taken == [b"short"]
    await other.close()


async def test_a_refused_listening_says_why(link: RedisLink, url: str) -> None:
    import redis

    await link.command("ACL", "SETUSER", "deaf", "on", "nopass", "+ping", "+client", "+echo")
    deaf = RedisLink(url.replace("//", "//deaf:x@"))
    assert await deaf.command("ECHO", "a") == b"a"
    with pytest.raises(redis.ResponseError, match="NOPERM"):
        await deaf.listen("channel", lambda _: None)
    await deaf.close()


async def test_who_listens_is_told_once_it_is_subscribed(link: RedisLink) -> None:
    subscribed = asyncio.Event()
    messages: asyncio.Queue[bytes] = asyncio.Queue()
    listening = asyncio.create_task(link.listen("replies", messages.put_nowait, subscribed.set))
    async with asyncio.timeout(30):
        await subscribed.wait()
        await link.command("PUBLISH", "replies", "hello")
        assert await messages.get() == b"hello"
    listening.cancel()
    await asyncio.wait({listening})

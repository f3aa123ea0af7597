"""asyncpg through the pooler: each client is a task with a connection of its own."""

import asyncio
import os

import asyncpg

CLIENTS = int(os.environ.get("CLIENTS", "50"))
ROUNDS = 20


async def connect(**more):
    # A connection to a pooler waits for its turn, which the default of a minute may be short for.
    return await asyncpg.connect(timeout=120, **more)


async def client(me):
    name = f"asyncpg-{me}"
    db = await connect(server_settings={"application_name": name})
    add = await db.prepare("select $1::int * 1000 + $2::int")
    for round in range(ROUNDS):
        check(await db.fetchval("show application_name"), name)
        check(await add.fetchval(me, round), me * 1000 + round)
        check(await db.fetchval("select $1::text", name), name)
    await transactions(db, me)
    await errors(db)
    await copy(db, me)
    await notifications(db, me)
    if me % 10 == 0:
        await cancellation(db)
    check(await db.fetchval("select 1"), 1)
    await db.close()


async def transactions(db, me):
    insert = "insert into compat_asyncpg values ($1, $2)"
    lost = db.transaction()
    await lost.start()
    await db.execute(insert, me, "lost")
    await lost.rollback()
    async with db.transaction():
        await db.executemany(insert, [(me, f"kept {n}") for n in range(5)])
        # A cursor is a portal, which lives to the end of the transaction.
        numbers = [row[0] async for row in db.cursor("select generate_series(1, 300)", prefetch=50)]
        check(numbers, list(range(1, 301)))
    rows = await db.fetch("select note from compat_asyncpg where client = $1 order by 1", me)
    check([row["note"] for row in rows], [f"kept {n}" for n in range(5)])


async def notifications(db, me):
    heard = asyncio.Queue()
    channel = f"compat {me}"
    await db.add_listener(channel, lambda _db, _pid, channel, payload: heard.put_nowait((channel, payload)))
    for n in range(5):
        await db.execute("select pg_notify($1, $2)", channel, str(n))
    for n in range(5):
        check(await asyncio.wait_for(heard.get(), 120), (channel, str(n)))


async def errors(db):
    for _ in range(3):
        try:
            await db.fetchval("select 1 / $1::int", 0)
            raise AssertionError("a division by zero went well")
        except asyncpg.DivisionByZeroError:
            pass
        try:
            await db.prepare("select * from no_such_table")
            raise AssertionError("an unknown table was found")
        except asyncpg.UndefinedTableError:
            pass


async def copy(db, me):
    rows = [(me, f"copied {n}") for n in range(1000)]
    await db.copy_records_to_table("compat_asyncpg", records=rows)
    received = bytearray()

    async def take(data):
        received.extend(data)

    query = "select note from compat_asyncpg where client = $1 and note like 'copied%'"
    await db.copy_from_query(query, me, output=take)
    check(sorted(received.decode().splitlines()), sorted(note for _, note in rows))


async def cancellation(db):
    try:
        await db.execute("select pg_sleep(60)", timeout=0.3)
        raise AssertionError("sleep was not cancelled")
    except (asyncio.TimeoutError, asyncpg.QueryCanceledError):
        pass


def check(found, expected):
    assert found == expected, f"found {found!r}, expected {expected!r}"


async def main():
    db = await connect()
    await db.execute("drop table if exists compat_asyncpg")
    await db.execute("create table compat_asyncpg (client int, note text)")
    await db.close()
    await asyncio.gather(*(client(me) for me in range(CLIENTS)))
    print(f"asyncpg {asyncpg.__version__}: {CLIENTS} clients ok")


asyncio.run(main())

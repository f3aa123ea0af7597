"""asyncpg through the pooler: each client is a task with a connection of its own."""

import asyncio
import json
import os
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import asyncpg

CLIENTS = int(os.environ.get("CLIENTS", "50"))
ROUNDS = 20
PAUSE = float(os.environ.get("PAUSE", "0"))


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
    await values(db, me)
    await typed(db, me)
    await prepared_again(db, me)
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
        savepoint = db.transaction()
        await savepoint.start()
        await db.execute(insert, me, "lost in a savepoint")
        await savepoint.rollback()
        # A cursor is a portal, which lives to the end of the transaction.
        numbers = [row[0] async for row in db.cursor("select generate_series(1, 300)", prefetch=50)]
        check(numbers, list(range(1, 301)))
    rows = await db.fetch("select note from compat_asyncpg where client = $1 order by 1", me)
    check([row["note"] for row in rows], [f"kept {n}" for n in range(5)])


async def values(db, me):
    rows = [
        (me, 1, me - 2**62, 0.1 + me, "Ünï\tcode\n'\\", bytes(range(256)), json.dumps({"a": [1, None]}), [1, None, me], ["", "NULL", '"{}\\']),
        (me, 2, None, None, None, None, None, None, None),
        (me, 3, 0, float("inf"), "", b"", "[]", [], []),
    ]
    await db.executemany("insert into compat_asyncpg_values values ($1, $2, $3, $4, $5, $6, $7, $8, $9)", rows)
    found = await db.fetch("select * from compat_asyncpg_values where client = $1 order by n", me)
    check([tuple(row) for row in found], rows)
    # COPY in binary form.
    await db.copy_records_to_table("compat_asyncpg_values_copied", records=[(me, 4, *row[2:]) for row in rows[:1]])
    found = await db.fetchrow("select * from compat_asyncpg_values_copied where client = $1 and n = 4", me)
    check(tuple(found), (me, 4, *rows[0][2:]))


INDIA = timezone(timedelta(hours=5, minutes=30))


async def typed(db, me):
    """Everything is bound as binary, with the types that the server infers."""
    rows = [
        (me, 1, Decimal("12345678901234567890.000000001"), datetime(2026, 11, 20, 12, 30, 15, 123456, INDIA), date(2024, 2, 29), UUID(int=me)),
        (me, 2, Decimal("NaN"), datetime(1900, 1, 1, tzinfo=timezone.utc), date(1, 1, 1), None),
        (me, 3, Decimal("-0.0010"), None, None, UUID(int=2**128 - 1)),
    ]
    for row in rows:
        await db.execute("insert into compat_asyncpg_typed values ($1, $2, $3, $4, $5, $6)", *row)
    result = "insert into compat_asyncpg_typed (client, n, result) select $1::int, $2::int, "
    pairs = [
        ("($3::int8 + $4::numeric)::text", 40000, Decimal("0.50")),
        ("($3::timestamptz - $4)::text", rows[0][3], rows[1][3]),
        ("($3::timestamptz - $4::interval)::text", rows[0][3], timedelta(days=1, seconds=3)),
        ("(unnest($3::int[]) * $4)::text", [3, 1, me], 2),
        ("($3::int = any($4))::text", 10, [9, 10]),
    ]
    for n, (expression, one, other) in enumerate(pairs):
        await db.execute(result + expression, me, 100 + n, one, other)
    # Without its types, which no log has, it looks like a comparison of numbers.
    await db.execute("insert into compat_asyncpg_untyped select $1::int, 1, ($2 < $3)::text", me, "9", "10")


async def prepared_again(db, me):
    """A prepared statement whose result changes its type, and prepared statements that are gone."""
    table = f"compat_asyncpg_own_{me}"
    await db.execute(f"create table {table} (a int, b text)")
    # In a transaction, since a pooler may have prepared it on another server connection, too.
    select = f"select * from {table} where a = $1"
    async with db.transaction():
        for n in range(3):
            await db.execute(f"insert into {table} values ($1, $2)", n, "")
            await db.fetch(select, n)
        await db.execute(f"alter table {table} add c text default 'c'")
        try:
            async with db.transaction():
                await db.fetch(select, 1)
            raise AssertionError("the result has no other type")
        except asyncpg.InvalidCachedStatementError:
            pass
        check(len(await db.fetch(select, 1)), 1)
    await db.execute(f"update {table} set b = b || $1", "after")


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
    await db.copy_records_to_table("compat_asyncpg_copied", records=rows)
    received = bytearray()

    async def take(data):
        received.extend(data)

    query = "select note from compat_asyncpg_copied where client = $1"
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
    await db.execute("drop table if exists compat_asyncpg_copied")
    await db.execute("create table compat_asyncpg_copied (client int, note text)")
    await db.execute("drop table if exists compat_asyncpg_typed")
    await db.execute(
        "create table compat_asyncpg_typed (client int, n int, num numeric, at timestamptz, d date, u uuid, result text)"
    )
    await db.execute("drop table if exists compat_asyncpg_untyped")
    await db.execute("create table compat_asyncpg_untyped (client int, n int, result text)")
    for me in range(CLIENTS):
        await db.execute(f"drop table if exists compat_asyncpg_own_{me}")
    await db.execute("drop table if exists compat_asyncpg_values")
    await db.execute(
        "create table compat_asyncpg_values (client int, n int, i int8, f float8, t text, b bytea, j jsonb,"
        " ints int[], texts text[], primary key (client, n))"
    )
    await db.execute("drop table if exists compat_asyncpg_values_copied")
    await db.execute("create table compat_asyncpg_values_copied (like compat_asyncpg_values)")
    await db.close()
    await asyncio.sleep(PAUSE)
    await asyncio.gather(*(client(me) for me in range(CLIENTS)))
    print(f"asyncpg {asyncpg.__version__}: {CLIENTS} clients ok")


asyncio.run(main())

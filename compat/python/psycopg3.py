"""psycopg 3 through the pooler: each client is a thread with a connection of its own."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

CLIENTS = int(os.environ.get("CLIENTS", "50"))
ROUNDS = 20
PAUSE = float(os.environ.get("PAUSE", "0"))


def client(me):
    name = f"psycopg-{me}"
    # A statement is prepared at its second use, so that there are both kinds.
    with psycopg.connect(application_name=name, prepare_threshold=2, autocommit=True) as db:
        for round in range(ROUNDS):
            check(db.execute("show application_name").fetchone(), (name,))
            query = "select %s::int * 1000 + %s::int, %s::text"
            check(db.execute(query, (me, round, name)).fetchone(), (me * 1000 + round, name))
        transactions(db, me)
        values(db, me)
        typed(db, me)
        prepared_again(db, me)
        cursors(db)
        errors(db)
        copy(db, me)
        notifications(db, me)
        if me % 10 == 0:
            cancellation(db)
        check(db.execute("select 1").fetchone(), (1,))


def transactions(db, me):
    insert = "insert into compat_psycopg values (%s, %s)"
    with db.transaction(force_rollback=True):
        db.execute(insert, (me, "lost"))
    with db.transaction():
        for n in range(5):
            db.execute(insert, (me, f"kept {n}"))
            with db.transaction(force_rollback=True):
                db.execute(insert, (me, "lost in a savepoint"))
    rows = db.execute("select note from compat_psycopg where client = %s order by 1", (me,))
    check(rows.fetchall(), [(f"kept {n}",) for n in range(5)])


EVERY_BYTE = bytes(range(256))


def values(db, me):
    rows = [
        (me, 1, me - 2**62, 0.1 + me, "Ünï\tcode\n'\\", EVERY_BYTE, {"a": [1, None, "ü"]}, [1, None, me], ["", "NULL", '"{}\\']),
        (me, 2, None, None, None, None, None, None, None),
        (me, 3, 0, float("inf"), "", b"", [], [], []),
    ]
    # As text, as binary, and many at once, which is a pipeline.
    for n, form in enumerate(("%s", "%b", "%t")):
        insert = f"insert into compat_psycopg_values values ({', '.join([form] * 9)})"
        ready = [[Jsonb(it) if at == 6 and it is not None else it for at, it in enumerate(row)] for row in rows]
        for row in ready:
            row[1] += 10 * n
        db.execute(insert, ready[0])
        with db.cursor() as cursor:
            cursor.executemany(insert, ready[1:])
        for binary in (False, True):
            select = "select * from compat_psycopg_values where client = %s and n = %s"
            for row in rows:
                found = db.execute(select, (me, row[1] + 10 * n), binary=binary).fetchone()
                check(found, (me, row[1] + 10 * n, *row[2:]))


INDIA = timezone(timedelta(hours=5, minutes=30))


def typed(db, me):
    """Types that the driver declares, and statements whose results depend on them."""
    rows = [
        (me, 1, Decimal("12345678901234567890.000000001"), datetime(2026, 11, 20, 12, 30, 15, 123456, INDIA), date(2024, 2, 29), UUID(int=me)),
        (me, 2, Decimal("NaN"), datetime(1900, 1, 1, tzinfo=timezone.utc), date(1, 1, 1), None),
        (me, 3, Decimal("-0.0010"), None, None, UUID(int=2**128 - 1)),
    ]
    for n, form in enumerate(("%s", "%b", "%t")):
        insert = f"insert into compat_psycopg_typed values ({', '.join([form] * 6)})"
        for row in rows:
            db.execute(insert, (me, row[1] + 10 * n, *row[2:]))
    result = "insert into compat_psycopg_typed (client, n, result) select %s::int, %s::int, "
    pairs = [
        ("(%s + %s)::text", 40000, Decimal("0.50")),
        ("(%s < %s)::text", 9, 10),
        ("greatest(%s, %s)::text", 9, 10),
        ("(%s - %s)::text", rows[0][3], rows[1][3]),
        ("(%s - %s)::text", rows[0][3], timedelta(days=1, seconds=3)),
        ("jsonb_build_array(%s, %s::text)::text", 5, "5"),
        ("(unnest(%s::int[]) * %s)::text", [3, 1, me], 2),
        ("(%s = any(%s))::text", 10, [9, 10]),
        ("concat(%s, '|', %s::text)", True, "ü\\'\n"),
    ]
    for round in range(3):
        for n, (expression, one, other) in enumerate(pairs):
            db.execute(result + expression, (me, 100 * (round + 1) + n, one, other))


def prepared_again(db, me):
    """A prepared statement whose result changes its type, and prepared statements that are gone.

    In a transaction, since a pooler may have prepared it on another server connection, too.
    """
    table = f"compat_psycopg_own_{me}"
    db.execute(f"create table {table} (a int, b text)")
    insert, select = f"insert into {table} values (%s, %s)", f"select * from {table}"
    with db.transaction():
        for n in range(4):
            db.execute(insert, (n, ""))
            db.execute(select)
        db.execute(f"alter table {table} alter a type text")
        for _ in range(4):
            try:
                with db.transaction():
                    db.execute(select)
            except psycopg.errors.FeatureNotSupported:
                pass
        db.execute("deallocate all")
        db.execute(f"update {table} set b = b || %s", ("after",))


def cursors(db):
    with db.transaction(), db.cursor(name="in parts") as cursor:
        cursor.execute("select generate_series(1, %s::int)", (25,))
        check(cursor.fetchmany(10), [(n,) for n in range(1, 11)])
        check(cursor.fetchall(), [(n,) for n in range(11, 26)])


def notifications(db, me):
    with db.transaction():
        db.execute(f"listen compat_{me}")
        db.execute("listen not_this")
        with db.transaction(force_rollback=True):
            db.execute("listen nor_this")
        db.execute("unlisten not_this")
    db.execute("select pg_notify('not_this', ''), pg_notify('nor_this', '')")
    for n in range(5):
        db.execute("select pg_notify(%s, %s)", (f"compat_{me}", str(n)))
    heard = [(it.channel, it.payload) for it in db.notifies(timeout=120, stop_after=5)][:5]
    check(heard, [(f"compat_{me}", str(n)) for n in range(5)])


def errors(db):
    for _ in range(3):
        try:
            db.execute("select 1 / %s::int", (0,))
            raise AssertionError("a division by zero went well")
        except psycopg.errors.DivisionByZero:
            pass
    with db.pipeline():
        first = db.execute("select %s::int", (1,))
        second = db.execute("select %s::int", (2,))
    check((first.fetchone(), second.fetchone()), ((1,), (2,)))
    try:
        with db.pipeline():
            db.execute("select %s::int", (1,))
            db.execute("select 1 / %s::int", (0,))
            db.execute("select %s::int", (3,))
        raise AssertionError("a pipeline with an error in it went well")
    except psycopg.errors.DivisionByZero:
        pass


def copy(db, me):
    with db.cursor() as cursor:
        with cursor.copy("copy compat_psycopg_copied (client, note) from stdin") as into:
            for n in range(1000):
                into.write_row((me, f"copied\t{n}\n"))
        query = "copy (select note from compat_psycopg_copied where client = %s) to stdout"
        with cursor.copy(query, (me,)) as out:
            rows = sorted(row[0] for row in out.rows())
    check(rows, sorted(f"copied\t{n}\n" for n in range(1000)))


def cancellation(db):
    timer = threading.Timer(0.3, db.cancel)
    timer.start()
    try:
        db.execute("select pg_sleep(60)")
        raise AssertionError("sleep was not cancelled")
    except psycopg.errors.QueryCanceled:
        pass
    finally:
        timer.join()


def check(found, expected):
    assert found == expected, f"found {found!r}, expected {expected!r}"


def main():
    with psycopg.connect(autocommit=True) as db:
        db.execute("drop table if exists compat_psycopg")
        db.execute("create table compat_psycopg (client int, note text)")
        db.execute("drop table if exists compat_psycopg_copied")
        db.execute("create table compat_psycopg_copied (client int, note text)")
        db.execute("drop table if exists compat_psycopg_typed")
        db.execute(
            "create table compat_psycopg_typed (client int, n int, num numeric, at timestamptz, d date, u uuid,"
            " result text)"
        )
        for me in range(CLIENTS):
            db.execute(f"drop table if exists compat_psycopg_own_{me}")
        db.execute("drop table if exists compat_psycopg_values")
        db.execute(
            "create table compat_psycopg_values (client int, n int, i int8, f float8, t text, b bytea, j jsonb,"
            " ints int[], texts text[], primary key (client, n))"
        )
    time.sleep(PAUSE)
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(client, range(CLIENTS)))
    print(f"psycopg {psycopg.__version__}: {CLIENTS} clients ok")


main()

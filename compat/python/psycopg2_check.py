"""psycopg2 through the pooler: it puts values into the text itself and sends only simple queries."""

import io
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import psycopg2
import psycopg2.extras

CLIENTS = int(os.environ.get("CLIENTS", "50"))
ROUNDS = 20
PAUSE = float(os.environ.get("PAUSE", "0"))
INDIA = timezone(timedelta(hours=5, minutes=30))

psycopg2.extras.register_uuid()


def connect(name):
    # The driver's libpq finds its target in the environment.
    db = psycopg2.connect("", application_name=name)
    db.autocommit = True
    return db


def client(me):
    name = f"psycopg2-{me}"
    db = connect(name)
    with db.cursor() as cursor:
        for round in range(ROUNDS):
            cursor.execute("show application_name")
            check(cursor.fetchone(), (name,))
            cursor.execute("select %s * 1000 + %s, %s", (me, round, name))
            check(cursor.fetchone(), (me * 1000 + round, name))
    transactions(db, me)
    values(db, me)
    typed(db, me)
    prepared(db, me)
    cursors(db)
    errors(db)
    copy(db, me)
    if me % 10 == 0:
        cancellation(db)
    db.close()


def transactions(db, me):
    insert = "insert into compat_psycopg2 values (%s, %s)"
    db.autocommit = False
    with db.cursor() as cursor:
        cursor.execute(insert, (me, "lost"))
        db.rollback()
    with db, db.cursor() as cursor:
        psycopg2.extras.execute_batch(cursor, insert, [(me, f"kept {n}") for n in range(5)])
        cursor.execute("savepoint s")
        cursor.execute(insert, (me, "lost in a savepoint"))
        try:
            cursor.execute("select 1 / 0")
        except psycopg2.errors.DivisionByZero:
            pass
        cursor.execute("rollback to savepoint s")
    with db, db.cursor() as cursor:
        cursor.execute("select note from compat_psycopg2 where client = %s order by 1", (me,))
        check(cursor.fetchall(), [(f"kept {n}",) for n in range(5)])
    db.autocommit = True


EVERY_BYTE = bytes(range(256))


def values(db, me):
    rows = [
        (me, 1, me - 2**62, 0.1 + me, "Ünï\tcode\n'\\ %", EVERY_BYTE, {"a": [1, None, "ü"]}, [1, None, me], ["", "NULL", '"{}\\']),
        (me, 2, None, None, None, None, None, None, None),
        (me, 3, 0, float("inf"), "", b"", [], [], []),
    ]

    def ready(row):
        json_or_null = None if row[6] is None else psycopg2.extras.Json(row[6])
        return (*row[:6], json_or_null, *row[7:])

    with db.cursor() as cursor:
        insert = "insert into compat_psycopg2_values values (%s, %s, %s, %s, %s, %s, %s, %s::int[], %s::text[])"
        for row in rows:
            cursor.execute(insert, ready(row))
            cursor.execute("select * from compat_psycopg2_values where client = %s and n = %s", (me, row[1]))
            found = cursor.fetchone()
            check((*found[:5], None if found[5] is None else bytes(found[5]), *found[6:]), row)
        # Many rows in one statement, and many statements in one message.
        again = [(me, row[1] + 10, *ready(row)[2:]) for row in rows]
        template = "(%s, %s, %s, %s, %s, %s, %s, %s::int[], %s::text[])"
        psycopg2.extras.execute_values(cursor, "insert into compat_psycopg2_values values %s", again, template)


def typed(db, me):
    at, long_ago = datetime(2026, 11, 20, 12, 30, 15, 123456, INDIA), datetime(1900, 1, 1, tzinfo=timezone.utc)
    rows = [
        (me, 1, Decimal("12345678901234567890.000000001"), at, date(2024, 2, 29), UUID(int=me)),
        (me, 2, Decimal("NaN"), long_ago, date(1, 1, 1), None),
        (me, 3, Decimal("-0.0010"), None, None, UUID(int=2**128 - 1)),
    ]
    expressions = [
        ("(%s + %s)::text", 40000, Decimal("0.50")),
        ("(%s < %s)::text", 9, 10),
        ("(%s - %s)::text", at, long_ago),
        ("(%s - %s)::text", at, timedelta(days=1, seconds=3)),
        ("jsonb_build_array(%s, %s)::text", 5, "5"),
        ("(unnest(%s) * %s)::text", [3, 1, me], 2),
        ("(%s = any(%s))::text", 10, [9, 10]),
        ("concat(%s, '|', %s)", True, "ü\\'\n"),
    ]
    with db.cursor() as cursor:
        for row in rows:
            cursor.execute("insert into compat_psycopg2_typed values (%s, %s, %s, %s, %s, %s)", row)
        for n, (expression, one, other) in enumerate(expressions):
            text = f"insert into compat_psycopg2_typed (client, n, result) select %s, %s, {expression}"
            cursor.execute(text, (me, 100 + n, one, other))


def prepared(db, me):
    """PREPARE and EXECUTE as statements, in a transaction, where the server stays the same."""
    table = f"compat_psycopg2_own_{me}"
    db.autocommit = False
    with db, db.cursor() as cursor:
        cursor.execute(f"create table {table} (a int, b text)")
        for notes in ("one", "two"):
            cursor.execute(f"prepare own_{me} (int, text) as insert into {table} values ($1, $2 || '{notes}')")
            for n in range(3):
                cursor.execute(f"execute own_{me} (%s, %s)", (n, f"'{n}'"))
            cursor.execute(f"deallocate own_{me}")
    db.autocommit = True


def cursors(db):
    db.autocommit = False
    with db, db.cursor(name="in parts") as cursor:
        cursor.itersize = 10
        cursor.execute("select generate_series(1, %s)", (25,))
        check(cursor.fetchmany(10), [(n,) for n in range(1, 11)])
        check(list(cursor), [(n,) for n in range(11, 26)])
    db.autocommit = True


def errors(db):
    with db.cursor() as cursor:
        for text in ("select 1 / 0", "select 1; select 1 / 0; select 2", "select * from no_such_table", "selec"):
            try:
                cursor.execute(text)
                raise AssertionError(f"{text} went well")
            except (psycopg2.errors.DivisionByZero, psycopg2.ProgrammingError):
                pass


def copy(db, me):
    lines = [f"{me}\tcopied {n}\n" for n in range(1000)]
    with db.cursor() as cursor:
        cursor.copy_expert("copy compat_psycopg2_copied from stdin", io.StringIO("".join(lines)))
        received = io.StringIO()
        cursor.copy_expert(f"copy (select * from compat_psycopg2_copied where client = {me}) to stdout", received)
    check(sorted(received.getvalue().splitlines(True)), sorted(lines))


def cancellation(db):
    timer = threading.Timer(0.3, db.cancel)
    timer.start()
    try:
        with db.cursor() as cursor:
            cursor.execute("select pg_sleep(60)")
        raise AssertionError("sleep was not cancelled")
    except psycopg2.errors.QueryCanceled:
        pass
    finally:
        timer.join()


def check(found, expected):
    assert found == expected, f"found {found!r}, expected {expected!r}"


def main():
    db = connect("psycopg2")
    with db.cursor() as cursor:
        tables = ["", "_values", "_typed", "_copied", *(f"_own_{me}" for me in range(CLIENTS))]
        for table in tables:
            cursor.execute(f"drop table if exists compat_psycopg2{table}")
        cursor.execute("create table compat_psycopg2 (client int, note text)")
        cursor.execute("create table compat_psycopg2_copied (client int, note text)")
        cursor.execute(
            "create table compat_psycopg2_typed (client int, n int, num numeric, at timestamptz, d date, u uuid,"
            " result text)"
        )
        cursor.execute(
            "create table compat_psycopg2_values (client int, n int, i int8, f float8, t text, b bytea, j jsonb,"
            " ints int[], texts text[], primary key (client, n))"
        )
    db.close()
    time.sleep(PAUSE)
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(client, range(CLIENTS)))
    print(f"psycopg2 {psycopg2.__version__.split()[0]}: {CLIENTS} clients ok")


main()

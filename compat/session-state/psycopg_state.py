"""Session state over psycopg 3: each client is a thread with a connection of its own."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

CLIENTS = int(os.environ.get("CLIENTS", "50"))
ROUNDS = 60


def value(db, sql, *parameters):
    return db.execute(sql, parameters or None).fetchone()[0]


def check(found, expected):
    if found != expected:
        raise AssertionError(f"found {found!r}, expected {expected!r}")


def temporary_table(db, me):
    db.execute("create temp table own (id int)")
    db.execute("insert into own select generate_series(1, %s)", [me + 1])
    check(value(db, "select count(*) from own"), me + 1)
    db.execute("drop table own")


def advisory_lock(db, me):
    db.execute("select pg_advisory_lock(%s)", [me])
    try:
        mine = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() and objid = %s"
        check(value(db, mine, me), 1)
    finally:
        check(value(db, "select pg_advisory_unlock(%s)", me), True)


def held_cursor(db, me):
    with db.transaction():
        db.execute(f"declare held cursor with hold for select n * {me} from generate_series(1, 3) n")
    check([row[0] for row in db.execute("fetch all from held")], [me, 2 * me, 3 * me])
    db.execute("close held")


def server_side_prepare(db, me):
    db.execute(f"prepare own as select {me}")
    check(value(db, "execute own"), me)
    db.execute("deallocate own")


STATES = [temporary_table, advisory_lock, held_cursor, server_side_prepare]


def client(me):
    choose = random.Random(me)
    with psycopg.connect(application_name=f"state-{me}", autocommit=True) as db:
        db.execute(f"set work_mem = '{100 + me}kB'")
        db.execute(f"select set_config('app.tenant', '{me}', false)")
        for turn in range(ROUNDS):
            check(value(db, "select current_setting('app.tenant')"), str(me))
            check(value(db, "show work_mem"), f"{100 + me}kB")
            with db.transaction():
                check(value(db, "select %s::int + 1", me * turn), me * turn + 1)
            if turn % 15 == me % 15:
                choose.choice(STATES)(db, me)
            time.sleep(0.03)


with ThreadPoolExecutor(CLIENTS) as threads:
    for done in [threads.submit(client, me) for me in range(CLIENTS)]:
        done.result()
print(f"psycopg {psycopg.__version__}, session state: {CLIENTS} clients ok")

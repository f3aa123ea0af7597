"""SQLAlchemy over psycopg 3: each client is a thread with an engine and a connection of its own."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

CLIENTS = int(os.environ.get("CLIENTS", "50"))
PAUSE = float(os.environ.get("PAUSE", "0"))
INDIA = timezone(timedelta(hours=5, minutes=30))


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "compat_sqlalchemy"
    client: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    n: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str | None]
    number: Mapped[Decimal | None]
    at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    day: Mapped[date | None]
    uuid: Mapped[UUID | None]
    data: Mapped[bytes | None]
    document: Mapped[dict | None] = mapped_column(JSONB(none_as_null=True))
    numbers: Mapped[list[int] | None] = mapped_column(sa.ARRAY(sa.Integer))
    # The server computes it, so that the driver asks for it.
    length: Mapped[int | None] = mapped_column(sa.Computed("length(text)"))


EVERY_BYTE = bytes(range(256))


def notes(me, first):
    at = datetime(2026, 11, 20, 12, 30, 15, 123456, INDIA)
    return [
        Note(client=me, n=first, text="Ünï\tcode\n'\\ %s", number=Decimal("12345678901234567890.001"), at=at,
             day=date(2024, 2, 29), uuid=UUID(int=me), data=EVERY_BYTE, document={"a": [1, None, "ü"]}, numbers=[1, me]),
        Note(client=me, n=first + 1),
        Note(client=me, n=first + 2, text="", number=Decimal("-0.0010"), data=b"", document={}, numbers=[]),
    ]


def engine(name, **more):
    url = sa.URL.create("postgresql+psycopg", query={"application_name": name})
    # The first connection asks for what the server can do; the driver prepares from the third use on.
    return sa.create_engine(url, poolclass=NullPool, connect_args={"prepare_threshold": 2}, **more)


def client(me):
    with engine(f"sqlalchemy-{me}").connect() as db:
        sessions(db, me)
        core(db, me)
        cursors(db)
        errors(db)
        if me % 10 == 0:
            cancellation(db)


def sessions(db, me):
    with Session(db) as session:
        # One statement for several rows, with RETURNING.
        session.add_all(notes(me, 1))
        session.flush()
        with session.begin_nested():
            session.add(Note(client=me, n=4, text="in a savepoint"))
        try:
            with session.begin_nested():
                session.add(Note(client=me, n=4, text="a duplicate"))
        except sa.exc.IntegrityError:
            pass
        session.commit()
        session.add(Note(client=me, n=5, text="lost"))
        session.flush()
        session.rollback()
        found = session.scalars(sa.select(Note).where(Note.client == me).order_by(Note.n)).all()
        check([(it.n, it.length) for it in found], [(1, 14), (2, None), (3, 0), (4, 14)])
        check((found[0].data, found[0].document, found[0].numbers), (EVERY_BYTE, {"a": [1, None, "ü"]}, [1, me]))
        found[0].text = "changed"
        session.delete(found[3])
        session.commit()


def core(db, me):
    table = Note.__table__
    for n in range(10, 20):
        db.execute(sa.insert(table).values(client=me, n=n, text=f"text {n}", number=Decimal(n) / 3))
        db.commit()
    put = insert(table).values(client=me, n=10, text="other")
    db.execute(put.on_conflict_do_update(index_elements=["client", "n"], set_={"text": put.excluded.text + "!"}))
    db.execute(sa.update(table).where(table.c.client == me, table.c.n.in_([11, 12])).values(text=sa.null()))
    # What the database computes of values whose types the driver declares.
    at = datetime(2026, 11, 20, 12, 30, 15, 123456, INDIA)
    computed = sa.select(
        sa.literal(me), sa.literal(30),
        sa.cast(sa.literal(at) - sa.literal(timedelta(days=1, seconds=3)), sa.Text) + sa.literal("|"),
        sa.literal(Decimal("0.50")) + sa.literal(40000),
    )
    db.execute(sa.insert(table).from_select(["client", "n", "text", "number"], computed))
    db.commit()
    # The same statement with many sets of values.
    rows = [{"client": me, "n": n, "text": f"many {n}"} for n in range(40, 60)]
    db.execute(sa.insert(table), rows)
    db.execute(sa.delete(table).where(table.c.client == sa.bindparam("c"), table.c.n == sa.bindparam("k")),
               [{"c": me, "k": 41}, {"c": me, "k": 43}])
    db.commit()


def cursors(db):
    """A named cursor of the server."""
    query = sa.text("select generate_series(1, 25)").execution_options(stream_results=True, max_row_buffer=10)
    check(db.execute(query).scalars().all(), list(range(1, 26)))
    db.rollback()


def errors(db):
    for text in ("select 1 / 0", "select * from no_such_table"):
        try:
            db.execute(sa.text(text))
            raise AssertionError(f"{text} went well")
        except sa.exc.DBAPIError:
            db.rollback()


def cancellation(db):
    timer = threading.Timer(0.3, db.connection.driver_connection.cancel)
    timer.start()
    try:
        db.execute(sa.text("select pg_sleep(60)"))
        raise AssertionError("sleep was not cancelled")
    except sa.exc.OperationalError:
        db.rollback()
    finally:
        timer.join()


def check(found, expected):
    assert found == expected, f"found {found!r}, expected {expected!r}"


def main():
    with engine("sqlalchemy").connect() as db:
        Base.metadata.drop_all(db)
        Base.metadata.create_all(db)
        db.commit()
    time.sleep(PAUSE)
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(client, range(CLIENTS)))
    print(f"SQLAlchemy {sa.__version__}: {CLIENTS} clients ok")


main()

"""Django's ORM over psycopg 3: each client is a thread, which has a connection of its own."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import django
from django.conf import settings

CLIENTS = int(os.environ.get("CLIENTS", "50"))
PAUSE = float(os.environ.get("PAUSE", "0"))
INDIA = timezone(timedelta(hours=5, minutes=30))

# Every second client has its values bound by the server.
DATABASE = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": os.environ["PGDATABASE"],
    "USER": os.environ["PGUSER"],
    "PASSWORD": os.environ.get("PGPASSWORD", ""),
    "HOST": os.environ["PGHOST"],
    "PORT": os.environ["PGPORT"],
    "OPTIONS": {"application_name": "django"},
}
settings.configure(
    DATABASES={
        "default": DATABASE,
        "bound": {**DATABASE, "OPTIONS": {"application_name": "django", "server_side_binding": True}},
    },
    USE_TZ=True,
    TIME_ZONE="Europe/Vienna",
    INSTALLED_APPS=["django.contrib.postgres"],
)
django.setup()

from django.contrib.postgres.fields import ArrayField  # noqa: E402
from django.db import DatabaseError, connections, models, transaction  # noqa: E402
from django.db.models import F, Value  # noqa: E402
from django.db.models.functions import Concat, TruncDay  # noqa: E402


class Note(models.Model):
    id = models.BigIntegerField(primary_key=True)
    client = models.IntegerField()
    text = models.TextField(null=True)
    number = models.DecimalField(max_digits=30, decimal_places=10, null=True)
    at = models.DateTimeField(null=True)
    day = models.DateField(null=True)
    lasts = models.DurationField(null=True)
    uuid = models.UUIDField(null=True)
    data = models.BinaryField(null=True)
    document = models.JSONField(null=True)
    numbers = ArrayField(models.IntegerField(null=True), null=True)

    class Meta:
        app_label = "compat"
        db_table = "compat_django"


EVERY_BYTE = bytes(range(256))


def client(me):
    using = ("default", "bound")[me % 2]
    notes = Note.objects.using(using)
    try:
        objects(notes, me, using)
        many(notes, me)
        cursors(notes, me, using)
        errors(using)
    finally:
        connections[using].close()


def objects(notes, me, using):
    at = datetime(2026, 11, 20, 12, 30, 15, 123456, INDIA)
    first = 1000 * me
    notes.create(
        id=first, client=me, text="Ünï\tcode\n'\\ %s", number=Decimal("12345678901234567890.001"), at=at,
        day=date(2024, 2, 29), lasts=timedelta(days=1, seconds=3), uuid=UUID(int=me), data=EVERY_BYTE,
        document={"a": [1, None, "ü"]}, numbers=[1, None, me],
    )
    notes.create(id=first + 1, client=me)
    notes.create(id=first + 2, client=me, text="", data=b"", document={}, numbers=[])
    with transaction.atomic(using=using):
        notes.create(id=first + 3, client=me, text="kept")
        try:
            with transaction.atomic(using=using):
                notes.create(id=first + 3, client=me, text="a duplicate")
        except DatabaseError:
            pass
    try:
        with transaction.atomic(using=using):
            notes.create(id=first + 4, client=me, text="lost")
            raise KeyError
    except KeyError:
        pass
    found = notes.get(id=first)
    check((bytes(found.data), found.document, found.numbers, found.at), (EVERY_BYTE, {"a": [1, None, "ü"]}, [1, None, me], at))
    found.text = "changed"
    found.save()
    notes.update_or_create(id=first + 5, defaults={"client": me, "text": "created"})
    notes.update_or_create(id=first + 5, defaults={"text": "updated"})
    check(notes.filter(client=me, document__a__0=1, numbers__contains=[me]).count(), 1)
    check(notes.filter(client=me, at__year=2026).annotate(start=TruncDay("at")).count(), 1)


def many(notes, me):
    first = 1000 * me + 100
    notes.bulk_create([Note(id=first + n, client=me, number=Decimal(n)) for n in range(50)], batch_size=20)
    some = list(notes.filter(client=me, id__gte=first + 40))
    for note in some:
        note.text = f"bulk {note.id}"
    notes.bulk_update(some, ["text"])
    notes.filter(client=me, id__in=range(first, first + 5)).update(
        number=F("number") * 2 + Decimal("0.5"), text=Concat(Value("ü'"), F("client"), Value("\\"), output_field=models.TextField())
    )
    notes.filter(client=me, number__range=(Decimal(20), Decimal("25.5"))).delete()


def cursors(notes, me, using):
    """A named cursor of the server, which the driver declares WITH HOLD outside of a transaction."""
    with transaction.atomic(using=using):
        check(sum(1 for _ in notes.filter(client=me).iterator(chunk_size=10)), 49)


def errors(using):
    with connections[using].cursor() as cursor:
        for text in ("select 1 / %s::int", "select * from no_such_table where a = %s"):
            try:
                cursor.execute(text, [0])
                raise AssertionError(f"{text} went well")
            except DatabaseError:
                pass


def check(found, expected):
    assert found == expected, f"found {found!r}, expected {expected!r}"


def main():
    with connections["default"].schema_editor() as editor:
        editor.execute("drop table if exists compat_django")
        editor.create_model(Note)
    connections["default"].close()
    time.sleep(PAUSE)
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(client, range(CLIENTS)))
    print(f"Django {django.__version__}: {CLIENTS} clients ok")


main()

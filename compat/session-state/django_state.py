"""Session state of Django's ORM: each client is a thread, which has a connection of its own."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import django
from django.conf import settings

CLIENTS = int(os.environ.get("CLIENTS", "50"))
ROUNDS = 60

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["PGDATABASE"],
            "USER": os.environ["PGUSER"],
            "PASSWORD": os.environ.get("PGPASSWORD", ""),
            "HOST": os.environ["PGHOST"],
            "PORT": os.environ["PGPORT"],
        }
    },
    USE_TZ=True,
    TIME_ZONE="Europe/Vienna",
)
django.setup()

from django.db import connection, models, transaction  # noqa: E402


class Item(models.Model):
    client = models.IntegerField()
    number = models.IntegerField()

    class Meta:
        app_label = "state"
        db_table = "state_django"


def check(found, expected):
    if found != expected:
        raise AssertionError(f"found {found!r}, expected {expected!r}")


def client(me):
    try:
        items = Item.objects.filter(client=me)
        with connection.cursor() as cursor:
            cursor.execute("set search_path = public, pg_catalog")
            cursor.execute("set lock_timeout = %s", [f"{me + 10}s"])
        for turn in range(ROUNDS):
            Item.objects.create(client=me, number=turn)
            check(items.count(), turn + 1)
            with transaction.atomic():
                with transaction.atomic():
                    items.update(client=me)
            with connection.cursor() as cursor:
                cursor.execute("show lock_timeout")
                check(cursor.fetchone()[0], f"{me + 10}s" if me != 50 else "1min")
            if turn % 15 == me % 15:
                # Outside a transaction, Django reads these rows by a cursor WITH HOLD.
                numbers = [item.number for item in items.order_by("number").iterator(chunk_size=5)]
                check(numbers, list(range(turn + 1)))
            time.sleep(0.03)
    finally:
        connection.close()


with connection.cursor() as cursor:
    cursor.execute("drop table if exists state_django")
with connection.schema_editor() as editor:
    editor.create_model(Item)
connection.close()
with ThreadPoolExecutor(CLIENTS) as threads:
    for done in [threads.submit(client, me) for me in range(CLIENTS)]:
        done.result()
print(f"Django {django.get_version()}, session state: {CLIENTS} clients ok")

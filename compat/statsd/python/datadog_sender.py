"""Datadog's client: python datadog_sender.py TRANSPORT ADDRESS PREFIX."""
import sys

from datadog.dogstatsd.base import DogStatsd

transport, address, prefix = sys.argv[1:]
if transport == "udp":
    host, port = address.rsplit(":", 1)
    client = DogStatsd(host=host, port=int(port), disable_telemetry=True)
else:
    # Waits while the socket is full, instead of dropping values.
    client = DogStatsd(socket_path=address, disable_telemetry=True, socket_timeout=None)
for _ in range(10):
    client.increment(prefix + "hits")
client.increment(prefix + "hits", 5)
client.decrement(prefix + "hits", 2)
client.increment(prefix + "tagged", 4, tags=["code:500"])
for value in (10, 20, 30):
    client.timing(prefix + "latency", value)
for value in (1, 2, 3):
    client.histogram(prefix + "size", value)
for value in (100, 200):
    client.distribution(prefix + "bytes", value)
for value in (3, 7):
    client.gauge(prefix + "level", value)
for user in ("anna", "bob", "anna"):
    client.set(prefix + "users", user)
client.flush()
client.close_socket()

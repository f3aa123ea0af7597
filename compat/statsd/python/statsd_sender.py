"""The client `statsd`: python statsd_sender.py TRANSPORT ADDRESS PREFIX."""
import sys

import statsd

transport, address, prefix = sys.argv[1:]
host, port = address.rsplit(":", 1)
kinds = {"udp": statsd.StatsClient, "tcp": statsd.TCPStatsClient}
client = kinds[transport](host=host, port=int(port), prefix=prefix.rstrip("."))
with client.pipeline() as pipe:
    for _ in range(10):
        pipe.incr("hits")
client.incr("hits", 5)
client.decr("hits", 2)
for value in (10, 20, 30):
    client.timing("latency", value)
for value in (3, 7):
    client.gauge("level", value)
for user in ("anna", "bob", "anna"):
    client.set("users", user)
client.close()

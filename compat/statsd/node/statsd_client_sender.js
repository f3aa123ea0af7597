// statsd-client: node statsd_client_sender.js TRANSPORT ADDRESS PREFIX
const StatsdClient = require('statsd-client');

const [transport, address, prefix] = process.argv.slice(2);
const [host, port] = address.split(':');
const client = new StatsdClient({ host, port: Number(port), tcp: transport === 'tcp', prefix });
for (let i = 0; i < 10; i++) client.increment('hits');
client.increment('hits', 5);
client.decrement('hits', 2);
[10, 20, 30].forEach((value) => client.timing('latency', value));
[3, 7].forEach((value) => client.gauge('level', value));
['anna', 'bob', 'anna'].forEach((user) => client.set('users', user));
client.close();

// hot-shots: node hot_shots_sender.js TRANSPORT ADDRESS PREFIX
const { StatsD } = require('hot-shots');

const [protocol, address, prefix] = process.argv.slice(2);
const [host, port] = address.split(':');
const client = new StatsD({ host, port: Number(port), protocol, prefix, errorHandler: fail });

function fail(error) {
  console.error(error);
  process.exit(1);
}

for (let i = 0; i < 10; i++) client.increment('hits');
client.increment('hits', 5);
client.decrement('hits', 2);
client.increment('tagged', 4, { code: '500' });
[10, 20, 30].forEach((value) => client.timing('latency', value));
[1, 2, 3].forEach((value) => client.histogram('size', value));
[100, 200].forEach((value) => client.distribution('bytes', value));
[3, 7].forEach((value) => client.gauge('level', value));
['anna', 'bob', 'anna'].forEach((user) => client.set('users', user));
client.close((error) => {
  if (error) fail(error);
});

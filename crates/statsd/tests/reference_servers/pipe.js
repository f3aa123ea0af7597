// A server and a backend for etsy's statsd: packets come from a file instead of a socket, flushes
// when the file says so, and what was flushed goes to standard output, one line of JSON each.
//
// statsd loads servers before it sets its flush timer, so the timer can be caught here.

const fs = require('fs');

let flush = null;

exports.start = function (config, callback) {
  global.setTimeout = function (run) { flush = run; };
  setImmediate(function () {
    for (const [what, packet] of JSON.parse(fs.readFileSync(config.pipe, 'utf8'))) {
      if (what === 'packet') {
        callback(Buffer.from(packet, 'base64'), {});
      } else {
        flush();
      }
    }
    process.removeAllListeners('exit');
    process.exit(0);
  });
  return true;
};

// A pipe takes what it has room for, or nothing at all while its reader is busy.
function write(text) {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; ) {
    try {
      at += fs.writeSync(1, bytes, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

exports.init = function (startup, config, events) {
  // JSON has no NaN and no Infinity.
  const number = (key, value) =>
    typeof value === 'number' && !Number.isFinite(value) ? String(value) : value;
  events.on('flush', function (timestamp, metrics) {
    const sets = {};
    for (const key in metrics.sets) {
      sets[key] = metrics.sets[key].values().length;
    }
    const { counters, counter_rates, timer_data, gauges } = metrics;
    const told = { counters, counter_rates, timer_data, gauges, sets };
    write(JSON.stringify(told, number) + '\n');
  });
  return true;
};

# The client `statsd-ruby`: ruby statsd_sender.rb TRANSPORT ADDRESS PREFIX
require 'statsd'

_, address, prefix = ARGV
host, _, port = address.rpartition(':')
client = Statsd.new(host, port.to_i)
client.namespace = prefix.delete_suffix('.')
10.times { client.increment('hits') }
client.count('hits', 5)
client.count('hits', -2)
[10, 20, 30].each { |value| client.timing('latency', value) }
[3, 7].each { |value| client.gauge('level', value) }
%w[anna bob anna].each { |user| client.set('users', user) }

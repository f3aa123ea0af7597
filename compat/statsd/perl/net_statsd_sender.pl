# Net::Statsd: perl net_statsd_sender.pl TRANSPORT ADDRESS PREFIX
use strict;
use warnings;
use Net::Statsd;

my (undef, $address, $prefix) = @ARGV;
($Net::Statsd::HOST, $Net::Statsd::PORT) = $address =~ /^(.*):(\d+)$/;
Net::Statsd::increment($prefix . 'hits') for 1 .. 10;
Net::Statsd::update_stats($prefix . 'hits', 5);
Net::Statsd::update_stats($prefix . 'hits', -2);
Net::Statsd::timing($prefix . 'latency', $_) for 10, 20, 30;
Net::Statsd::gauge($prefix . 'level', $_) for 3, 7;

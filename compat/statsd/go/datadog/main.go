// Datadog's client: datadog MODE TRANSPORT ADDRESS PREFIX
package main

import (
	"log"
	"os"
	"time"

	"github.com/DataDog/datadog-go/v5/statsd"
)

func main() {
	mode, transport, address, prefix := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	if transport == "unixgram" {
		address = "unixgram://" + address
	}
	options := []statsd.Option{statsd.WithNamespace(prefix), statsd.WithoutTelemetry(), statsd.WithoutOriginDetection()}
	switch mode {
	case "default": // counts, gauges and sets are aggregated
	case "raw": // one line for each value, of which few fit into a packet
		options = append(options, statsd.WithoutClientSideAggregation(), statsd.WithMaxMessagesPerPayload(3))
	case "extended": // values of timers, histograms and distributions are packed, too
		options = append(options, statsd.WithExtendedClientSideAggregation(), statsd.WithMaxBytesPerPayload(120))
	default:
		log.Fatalf("unknown mode %q", mode)
	}
	client, err := statsd.New(address, options...)
	check(err)
	for i := 0; i < 10; i++ {
		check(client.Incr("hits", nil, 1))
	}
	check(client.Count("hits", 5, nil, 1))
	check(client.Count("hits", -2, nil, 1))
	check(client.Count("tagged", 4, []string{"code:500"}, 1))
	for _, value := range []int{10, 20, 30} {
		check(client.Timing("latency", time.Duration(value)*time.Millisecond, nil, 1))
	}
	for _, value := range []float64{1, 2, 3} {
		check(client.Histogram("size", value, nil, 1))
	}
	for _, value := range []float64{100, 200} {
		check(client.Distribution("bytes", value, nil, 1))
	}
	for _, value := range []float64{3, 7} {
		check(client.Gauge("level", value, nil, 1))
	}
	for _, user := range []string{"anna", "bob", "anna"} {
		check(client.Set("users", user, nil, 1))
	}
	anHourAgo := time.Now().Add(-time.Hour)
	for _, value := range []int64{2, 3} {
		check(client.CountWithTimestamp("jobs", value, []string{"code:500"}, 1, anHourAgo))
	}
	check(client.GaugeWithTimestamp("load", 1.5, nil, 1, anHourAgo))
	check(client.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

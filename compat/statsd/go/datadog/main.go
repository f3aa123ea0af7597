// Datadog's client: datadog TRANSPORT ADDRESS PREFIX
package main

import (
	"log"
	"os"
	"time"

	"github.com/DataDog/datadog-go/v5/statsd"
)

func main() {
	transport, address, prefix := os.Args[1], os.Args[2], os.Args[3]
	if transport == "unixgram" {
		address = "unixgram://" + address
	}
	client, err := statsd.New(address, statsd.WithNamespace(prefix), statsd.WithoutTelemetry(), statsd.WithoutOriginDetection())
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
	check(client.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

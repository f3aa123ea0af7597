// go-statsd-client: cactus TRANSPORT ADDRESS PREFIX
package main

import (
	"log"
	"os"
	"strings"

	"github.com/cactus/go-statsd-client/v5/statsd"
)

func main() {
	address, prefix := os.Args[2], strings.TrimSuffix(os.Args[3], ".")
	client, err := statsd.NewClientWithConfig(&statsd.ClientConfig{Address: address, Prefix: prefix, UseBuffered: true})
	check(err)
	for i := 0; i < 10; i++ {
		check(client.Inc("hits", 1, 1))
	}
	check(client.Inc("hits", 5, 1))
	check(client.Dec("hits", 2, 1))
	for _, value := range []int64{10, 20, 30} {
		check(client.Timing("latency", value, 1))
	}
	for _, value := range []int64{3, 7} {
		check(client.Gauge("level", value, 1))
	}
	for _, user := range []string{"anna", "bob", "anna"} {
		check(client.Set("users", user, 1))
	}
	check(client.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

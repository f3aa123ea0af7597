import com.timgroup.statsd.NonBlockingStatsDClientBuilder;
import com.timgroup.statsd.StatsDClient;

/** Datadog's client: java DogStatsdSender TRANSPORT ADDRESS PREFIX. */
public class DogStatsdSender {
    public static void main(String[] args) {
        String address = args[1], prefix = args[2];
        NonBlockingStatsDClientBuilder builder = new NonBlockingStatsDClientBuilder()
                .enableTelemetry(false)
                // Otherwise it drops what it has when it is closed.
                .blocking(true)
                .originDetectionEnabled(false)
                .errorHandler(error -> {
                    error.printStackTrace();
                    System.exit(1);
                });
        if (args[0].equals("unixgram")) {
            builder.address("unixgram://" + address);
        } else {
            int colon = address.lastIndexOf(':');
            builder.hostname(address.substring(0, colon)).port(Integer.parseInt(address.substring(colon + 1)));
        }
        StatsDClient client = builder.build();
        for (int i = 0; i < 10; i++) {
            client.incrementCounter(prefix + "hits");
        }
        client.count(prefix + "hits", 5);
        client.count(prefix + "hits", -2);
        client.count(prefix + "tagged", 4, "code:500");
        for (int value : new int[] {10, 20, 30}) {
            client.recordExecutionTime(prefix + "latency", value);
        }
        for (int value : new int[] {1, 2, 3}) {
            client.recordHistogramValue(prefix + "size", value);
        }
        for (int value : new int[] {100, 200}) {
            client.recordDistributionValue(prefix + "bytes", value);
        }
        for (int value : new int[] {3, 7}) {
            client.recordGaugeValue(prefix + "level", value);
        }
        for (String user : new String[] {"anna", "bob", "anna"}) {
            client.recordSetValue(prefix + "users", user);
        }
        client.close();
    }
}

use super::*;
use crate::settings::{
    StatsdLogLevel,
    import::{errors, read_and_convert, warnings},
};

#[test]
fn flags_are_converted() {
    let text = "# of the unit file\nstatsd_exporter \\\n  --web.listen-address=127.0.0.1:9103 \\\n  \
                --statsd.listen-udp \":9135\" --statsd.listen-tcp='' \\\n  \
                --statsd.listen-unixgram=/run/exporter.sock --statsd.unixsocket-mode=775\n\
                --statsd.mapping-config=/etc/statsd_mapping.yml --statsd.read-buffer=65536\n\
                --statsd.relay.address=10.0.0.9:8125\n--log.level=debug --log.format=json\n\
                --statsd.cache-size=5000 --no-statsd.parse-influxdb-tags --web.enable-lifecycle\n\
                --statsd.listen-upd=:1\n";
    let read = read_and_convert("flags", text);
    let settings = &read.settings;
    assert_eq!(read.format, SettingsFormat::StatsdExporter);
    let mut listen = [
        ListenSettings::udp("0.0.0.0:9135".parse().unwrap()),
        ListenSettings::unixgram("/run/exporter.sock".into(), Some(0o775)),
    ];
    crate::settings::import::set_buffer(&mut listen, 65_536);
    assert_eq!(settings.listen, listen);
    let prometheus = PrometheusSettings {
        listen: "127.0.0.1:9103".parse().unwrap(),
        mapping: Some("/etc/statsd_mapping.yml".into()),
        ..PrometheusSettings::default()
    };
    assert_eq!(settings.backends.prometheus, Some(prometheus));
    assert_eq!(settings.backends.repeater[0].host, "10.0.0.9");
    assert_eq!(settings.log.level, Some(StatsdLogLevel::Debug));
    // The exporter's own defaults, but for the one that a flag turned off.
    let tags = settings.tags;
    assert!(tags.dogstatsd && tags.librato && tags.signalfx && !tags.influx);
    assert_eq!(
        warnings(&read),
        [
            "flags:8: log.format: use --log-format json instead",
            "flags:9: statsd.cache-size: not needed: mapped names are cached with their metrics",
            "flags:9: web.enable-lifecycle: not supported: send SIGHUP to reload, SIGTERM to stop",
            "flags:10: statsd.listen-upd: unknown key, ignored (did you mean \
             `statsd.listen-udp`?)",
        ]
    );
}

#[test]
fn mapping_file_runs_with_the_default_flags() {
    let text =
        "defaults:\n  ttl: 1h\nmappings:\n- match: \"a.*\"\n  name: a\n  labels: { b: $1 }\n";
    let read = read_and_convert("/etc/mapping.yml", text);
    assert_eq!(read.format, SettingsFormat::ExporterMapping);
    let address = "0.0.0.0:9125".parse().unwrap();
    let listen = [ListenSettings::udp(address), ListenSettings::tcp(address)];
    assert_eq!(read.settings.listen, listen);
    let prometheus = read.settings.backends.prometheus.unwrap();
    assert_eq!(prometheus.listen, "0.0.0.0:9102".parse().unwrap());
    assert_eq!(prometheus.mapping, Some("/etc/mapping.yml".into()));
}

#[test]
fn errors_name_line_and_flag() {
    let text = "--statsd.listen-udp=x\n--statsd.read-buffer=much\nnonsense\n--statsd.listen-tcp";
    assert_eq!(
        errors("flags", text),
        "flags:1: statsd.listen-udp: \"x\" is not an address: write IP:PORT\n\
         flags:2: statsd.read-buffer: \"much\" is not a number of bytes\n\
         flags:3: \"nonsense\" is not a flag\n\
         flags:4: statsd.listen-tcp: lacks a value"
    );
    assert_eq!(errors("flags", "--a='b\nc"), "flags:1: a quote is not closed");
}

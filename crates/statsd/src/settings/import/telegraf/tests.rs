use super::*;
use crate::settings::{
    StatsdSettings,
    import::{errors, read_and_convert, renamed, warnings},
};

const FILE: &str = r#"
[global_tags]
  dc = "eu1"
[agent]
  interval = "30s"
  hostname = "web1"
  debug = true
[[inputs.cpu]]
  percpu = true
[[inputs.statsd]]
  protocol = "udp"
  service_address = ":8135"
  read_buffer_size = 65536
  delete_gauges = false
  delete_timings = true
  percentiles = [50.0, 99.9]
  metric_separator = "_"
  datadog_extensions = true
  templates = ["cpu.* measurement.host"]
  max_ttl = "5m"
  delete_gaugess = true
[[inputs.statsd]]
  protocol = "tcp"
  service_address = "127.0.0.1:8136"
  max_tcp_connections = 10
[[outputs.influxdb]]
  urls = ["http://influx1:8086", "http://influx2:8086"]
  database = "shop"
  username = "joe"
  password = "s3cret&more"
  tls_ca = "/etc/telegraf/ca.pem"
[[outputs.influxdb_v2]]
  urls = ["https://influx3:8086"]
  token = "s3cret"
  organization = "ops"
  bucket = "stats"
[[outputs.prometheus_client]]
  listen = "127.0.0.1:9273"
  expiration_interval = "2m"
  basic_password = "s3cret"
[[outputs.graphite]]
  servers = ["graphite:2013"]
  prefix = "shop"
[[outputs.postgresql]]
  connection = "host=db user=joe password=s3cret"
[[outputs.kafka]]
  topic = "x"
"#;

#[test]
fn inputs_and_outputs_are_converted() {
    let read = read_and_convert("telegraf.conf", FILE);
    let settings = &read.settings;
    assert_eq!(read.format, SettingsFormat::Telegraf);
    let udp = ListenSettings::Udp {
        address: "0.0.0.0:8135".parse().unwrap(),
        readers: 1,
        buffer_bytes: 65_536,
        allow: Vec::new(),
    };
    let mut tcp = ListenSettings::tcp("127.0.0.1:8136".parse().unwrap());
    let ListenSettings::Tcp { connections, .. } = &mut tcp else { unreachable!() };
    *connections = 10;
    assert_eq!(settings.listen, [udp, tcp]);
    assert_eq!(settings.flush_interval, Duration::from_secs(30));
    assert_eq!(settings.log.level, Some(StatsdLogLevel::Debug));
    let rules = &settings.aggregation;
    assert_eq!((rules.percentiles.as_slice(), rules.gauge_ttl), (&[50.0, 99.9][..], 10));
    assert!(rules.delete_idle_gauges && rules.delete_idle_counters && !rules.sanitise);
    let tags = [("dc", "eu1"), ("host", "web1")];
    assert_eq!(settings.static_tags, tags.map(|(tag, value)| (tag.into(), value.into())).into());
    let backends = &settings.backends;
    let url = "http://influx1:8086/write?db=shop&u=joe&p=s3cret%26more".to_owned();
    let first =
        InfluxSettings { ca_file: Some("/etc/telegraf/ca.pem".into()), ..InfluxSettings::new(url) };
    let url = "https://influx3:8086/api/v2/write?org=ops&bucket=stats".to_owned();
    assert_eq!(backends.influx, [first, InfluxSettings::new(url)]);
    let prometheus = backends.prometheus.as_ref().unwrap();
    assert_eq!(prometheus.listen, "127.0.0.1:9273".parse().unwrap());
    assert_eq!(prometheus.ttl, Duration::from_secs(120));
    let graphite = &backends.graphite[0];
    assert_eq!((graphite.host.as_str(), graphite.port), ("graphite", 2013));
    assert_eq!((graphite.global_prefix.as_str(), graphite.prefix_timer.as_str()), ("shop", ""));
    let connection = "host=db user=joe password=s3cret".to_owned();
    assert_eq!(backends.postgres, [PostgresSettings::new(connection)]);
}

#[test]
fn keys_without_equivalent_are_warnings_without_secrets() {
    let read = read_and_convert("telegraf.conf", FILE);
    let warnings = warnings(&read);
    let expected = [
        "telegraf.conf:8: inputs: only statsd inputs are converted, not cpu",
        "telegraf.conf:19: inputs.statsd.templates: not converted",
        "telegraf.conf:20: inputs.statsd.max_ttl: applies to gauges",
        "telegraf.conf:21: inputs.statsd.delete_gaugess: unknown key, ignored (did you mean \
         `delete_gauges`?)",
        "telegraf.conf:22: inputs.statsd: only its listener is used",
        "telegraf.conf:26: outputs.influxdb.urls: only the first URL is used",
        "telegraf.conf:34: outputs.influxdb_v2.token: write the token to a file",
        "telegraf.conf:40: outputs.prometheus_client.basic_password: not supported",
        "telegraf.conf:44: outputs.postgresql: values go to the table statsd_samples",
        "telegraf.conf:46: outputs.kafka: this output is not supported",
    ];
    for text in expected {
        let is_there = warnings.iter().any(|warning| warning.starts_with(text));
        assert!(is_there, "{text} in {warnings:#?}");
    }
    let all = warnings.join("\n") + &read.config_lines.join("\n") + &format!("{read:?}");
    assert!(!all.contains("s3cret"), "{all}");
}

#[test]
fn filters_and_name_changes_become_rules() {
    let head = "[[inputs.statsd]]\nname_prefix = \"shop_\"\n";
    let dropping = format!(
        "{head}namedrop = [\"debug*\", \"a?\"]\ntagexclude = [\"pod\", \"ho*\"]\n\
         [inputs.statsd.tagdrop]\nlevel = [\"debug\", \"trace*\"]\n"
    );
    for (name, expected) in [
        ("b.c;pod=1;x=2", Some("shop_b.c;x=2")),
        ("debug.x.y", None),
        ("ab", None),
        ("abc", Some("shop_abc")),
        ("c;level=trace1", None),
        ("c;level=debug1", Some("shop_c;level=debug1")),
    ] {
        assert_eq!(renamed(&dropping, name).as_deref(), expected, "{name}");
    }
    let passing = format!(
        "{head}namepass = [\"web_*\", \"a.b\"]\ntaginclude = [\"env\", \"dc\"]\n\
         [inputs.statsd.tags]\ndc = \"eu\"\n[inputs.statsd.tagpass]\nenv = [\"prod\", \"test\"]\n"
    );
    for (name, expected) in [
        ("web.hits;env=prod;pod=1", Some("shop_web.hits;env=prod;dc=eu")),
        ("web.hits;env=dev", None),
        ("api.hits;env=prod", None),
        ("webs;env=prod", None),
        ("a.b;env=test", Some("shop_a.b;env=test;dc=eu")),
    ] {
        assert_eq!(renamed(&passing, name).as_deref(), expected, "{name}");
    }
    let text = "[[inputs.statsd]]\nnamepass = [\"[ab]*\"]\n";
    assert_eq!(
        errors("t.conf", text),
        "t.conf:2: inputs.statsd.namepass: \"[ab]*\" has characters other than * and ? with a \
         meaning"
    );
    assert_eq!(renamed("[[inputs.statsd]]\n", "a").as_deref(), Some("a;host=host"));
    let text =
        "[[inputs.statsd]]\n[inputs.statsd.tagpass]\nmetric_type = [\"gauge\", \"counter\"]\n";
    assert_eq!(renamed(text, "a").as_deref(), Some("a;host=host"));
    assert_eq!(renamed(&text.replace("counter", "timing"), "a"), None);
    let text = "[[inputs.statsd]]\nnamepass = [\"x\"]\ntemplates = [\"a.* measurement.host\"]\n";
    let read = read_and_convert("t.conf", text);
    assert_eq!(read.settings.rules, []);
    assert!(warnings(&read).iter().any(|text| text.contains("filters are not converted")));
    let text = "[[inputs.statsd]]\ntaginclude = [\"d?\"]\n";
    assert!(errors("t.conf", text).contains("\"d?\" has characters other than *"));
}

#[test]
fn environment_variables_are_replaced_in_texts() {
    let text = "[[inputs.statsd]]\nservice_address = \":${PORT}\"\n[[outputs.influxdb]]\n\
                urls = [\"$URL\"]\ndatabase = \"${DB:-stats}\"\nusername = \"${USER_NAME}\"\n";
    let variable = |name: &str| match name {
        "PORT" => Some("8140".to_owned()),
        "URL" => Some("http://influx:8086".to_owned()),
        _ => None,
    };
    let read = StatsdSettings::read_with(text, Path::new("t.conf"), "host", &variable).unwrap();
    assert_eq!(read.settings.listen, [ListenSettings::udp("0.0.0.0:8140".parse().unwrap())]);
    let url = "http://influx:8086/write?db=stats&u=%24%7BUSER_NAME%7D".to_owned();
    assert_eq!(read.settings.backends.influx, [InfluxSettings::new(url)]);
}

#[test]
fn errors_name_line_and_key() {
    let text = "[[inputs.statsd]]\nservice_address = \"x\"\npercentiles = 50\n[[outputs.influxdb]]\n\
                urls = [\"udp://influx:8089\"]\n";
    assert_eq!(
        errors("t.conf", text),
        "t.conf:1: inputs.statsd: \"x\" is not an address: write IP:PORT\n\
         t.conf:3: inputs.statsd.percentiles: must be a list of numbers\n\
         t.conf:4: outputs.influxdb: only http and https URLs are supported"
    );
    let text = "[agent]\ninterval = \"10s\"\n";
    assert_eq!(
        errors("t.conf", text),
        "t.conf: inputs.statsd: there is no [[inputs.statsd]] section"
    );
}

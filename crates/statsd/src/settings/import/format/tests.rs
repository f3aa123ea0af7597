use proptest::prelude::*;

use super::*;

fn format(text: &str, name: &str) -> Result<SettingsFormat, String> {
    let context = ExpressionContext { host: "", variable: &|_| None };
    detect(text, Path::new(name), context).map_err(|errors| errors.to_string())
}

#[test]
fn format_is_recognized_by_content() {
    let cases = [
        ("[replay]\nrate = 1\n[statsd]\n", SettingsFormat::Howdah),
        ("[[statsd.listen]]\ntype = 'udp'\n", SettingsFormat::Howdah),
        ("// x\n{ port: 8125 }", SettingsFormat::Literal),
        ("{ port: }", SettingsFormat::Literal),
        ("{ \"metrics-addr\": \":8125\" }", SettingsFormat::Gostatsd),
        ("metrics-addr = ':8125'\n", SettingsFormat::Gostatsd),
        ("backends = 'stdout'\n[graphite]\n", SettingsFormat::Gostatsd),
        ("flush-interval: 1s\n", SettingsFormat::Gostatsd),
        ("[statsite]\nlog_level = INFO\n", SettingsFormat::Statsite),
        ("# x\n[agent]\n[[inputs.statsd]]\n", SettingsFormat::Telegraf),
        ("\n# x\n--statsd.listen-udp=:1\n", SettingsFormat::StatsdExporter),
        ("/bin/statsd_exporter --log.level=info\n", SettingsFormat::StatsdExporter),
        ("---\nmappings: []\n", SettingsFormat::ExporterMapping),
        ("---\napi_key: x\n", SettingsFormat::Datadog),
        ("dogstatsd_port: 8125\n", SettingsFormat::Datadog),
    ];
    for (text, expected) in cases {
        assert_eq!(format(text, "settings"), Ok(expected), "{text}");
    }
}

#[test]
fn ambiguous_files_are_recognized_by_name() {
    assert_eq!(format("tags: [a]\n", "/etc/datadog/datadog.yaml"), Ok(SettingsFormat::Datadog));
    assert_eq!(format("", "datadog.yaml"), Ok(SettingsFormat::Datadog));
    for text in ["tags: [a]\n", "", "hello", "[replay]\nrate = 2\n", "mappings: []\nother: 1\n"] {
        let error = format(text, "settings.yaml").unwrap_err();
        let is_named = error.contains("unknown format") && error.contains("telegraf.conf");
        assert!(is_named, "{text}: {error}");
    }
}

#[test]
fn syntax_errors_are_reported_for_the_probable_format() {
    assert!(format("[statsd]\nflush-interval = \n", "x").unwrap_err().starts_with("x:2: "));
    assert!(format("flush-interval = \n", "x.toml").unwrap_err().starts_with("x.toml:1: "));
    let error = format("dogstatsd_port: [1\n", "x.yaml").unwrap_err();
    assert!(error.contains("invalid YAML"), "{error}");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(
        start in "(\\[statsite\\]\n|--a |api_key: |flush-interval: |\\[\\[inputs.statsd\\]\\]\n|)",
        rest in "[-\\[\\]{}:,'\"`a1.$/*# \n\\\\=|&!]{0,40}",
    ) {
        let text = start + &rest;
        let variable = |_: &str| Some("$x".to_owned());
        let read =
            crate::settings::StatsdSettings::read_with(&text, Path::new("f"), "h", &variable);
        if let Err(errors) = read {
            prop_assert!(!errors.0.is_empty());
        }
    }
}

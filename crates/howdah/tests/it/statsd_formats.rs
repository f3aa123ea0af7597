//! `howdah statsd` with settings files of other servers, and `howdah statsd import`.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::{howdah, statsd::StatsdProcess, text, wait_for_line};

#[test]
fn imported_file_starts_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let config = "{ port: 0, address: '127.0.0.1', mgmt_address: '127.0.0.1', mgmt_port: 0,\n \
                  title: 'x', flushInterval: 3600000, backends: ['console'] }";
    fs::write(folder.path().join("config.js"), config).unwrap();
    let words = ["statsd", "import", "config.js", "--dialect", "perl", "-o", "howdah.toml"];
    let output = howdah(folder.path()).args(words).assert().success();
    let messages = text(&output.get_output().stderr);
    assert!(messages.starts_with("written: howdah.toml\n"), "{messages}");
    assert!(messages.contains("keys without equal effect: 1"), "{messages}");
    let path = folder.path().join("howdah.toml");
    let written = fs::read_to_string(&path).unwrap();
    assert!(written.contains("config.js:2: title: not supported"), "{written}");
    assert!(written.contains("[statsd]\ndialect = \"perl\"\n"), "{written}");
    assert!(written.contains("reload-on-change = true\n"), "{written}");
    assert!(!written.contains("percentiles"), "only changed keys: {written}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let server = StatsdProcess::start(folder.path(), &["-c", "howdah.toml"]);
    server.send("a.b:3|c");
    server.wait_for_counter("a.b");
    // A file with settings is not overwritten.
    howdah(folder.path()).args(words).assert().code(1);
}

#[test]
fn changed_etsy_file_is_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let config = "{ port: 0, address: '127.0.0.1', mgmt_address: '127.0.0.1', mgmt_port: 0,
        flushInterval: 3600000, backends: ['console'], prefixStats: 'one' }";
    fs::write(folder.path().join("config.js"), config).unwrap();
    let mut server = StatsdProcess::start(folder.path(), &["-c", "config.js"]);
    let mut output = String::new();
    server.wait_for_counter("one.packets_received");
    fs::write(folder.path().join("config.js"), "{ port: }").unwrap();
    wait_for_line(&mut server.stderr, &mut output, "keeping the old settings: ");
    let changed = config.replace("'one'", "'second', automaticConfigReload: false");
    fs::write(folder.path().join("config.js"), changed).unwrap();
    server.wait_for_counter("second.packets_received");
    wait_for_line(&mut server.stderr, &mut output, "settings reloaded");
    let (code, rest) = server.terminate();
    assert_eq!(code, Some(0), "{rest}");
}

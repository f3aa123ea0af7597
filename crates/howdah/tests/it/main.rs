//! Tests of the whole binary, and of the workspace it is built from.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, helpers included"
)]

#[allow(dead_code, reason = "shared with the tests of the report's page, which use all of it")]
#[path = "../../../report/tests/page/browser.rs"]
mod browser;
mod capture;
mod capture_parts;
#[path = "../../../connect/tests/integration/certificates.rs"]
mod certificates;
mod cli;
mod compare;
mod config;
mod demo;
mod deploy;
mod docs;
mod doctor;
mod help;
mod lab;
mod monitoring;
mod pool;
mod pool_advise;
mod pool_peers;
mod pool_signals;
mod pool_sockets;
mod private_files;
mod probe;
mod probe_faults;
mod probe_run;
mod probe_sources;
mod rehearse;
mod rehearse_ci;
mod rehearse_live;
mod rehearse_start;
mod report_serve;
mod soak;
mod spark;
mod statsd;
mod statsd_formats;
mod statsd_takeover;
mod structure;
mod tmux;
mod top;
mod top_agent;
mod top_defects;
mod top_notify;
mod top_pooler;
mod top_record;
mod top_screen;
mod top_session;
mod top_troubles;
mod warm;
mod warm_follow;
mod workspace;

use std::{io::BufRead, path::Path};

use assert_cmd::Command;

/// The binary, in a folder, isolated from the user's settings and environment.
fn howdah(folder: &Path) -> Command {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("howdah");
    for (name, _) in std::env::vars_os() {
        let ours = name.to_string_lossy();
        if ours.starts_with("HOWDAH") || ours.starts_with("PG") || ours.starts_with("XDG") {
            command.env_remove(&name);
        }
    }
    command.current_dir(folder).env("HOME", folder).env("COLUMNS", "100");
    command
}

/// The output of a command as text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is not UTF-8")
}

/// The option that keeps the pooler running as the tests' user, even if that is root.
fn as_this_user() -> String {
    let name = std::process::Command::new("id").arg("-un").output().unwrap();
    format!("--os-user={}", text(&name.stdout).trim())
}

/// Reads lines until one contains `part`, and returns that line. All lines read are appended to
/// `output`. The runner of the tests ends a test that waits for too long.
fn wait_for_line<'o>(lines: &mut impl BufRead, output: &'o mut String, part: &str) -> &'o str {
    loop {
        let start = output.len();
        assert_ne!(lines.read_line(output).unwrap(), 0, "no {part:?} in:\n{output}");
        if output[start..].contains(part) {
            return output[start..].trim_end();
        }
    }
}

/// Like [`wait_for_line`], but returns what follows `part` in the line.
fn wait_for_value(lines: &mut impl BufRead, output: &mut String, part: &str) -> String {
    let line = wait_for_line(lines, output, part);
    line.split_once(part).map_or("", |(_, value)| value).to_owned()
}

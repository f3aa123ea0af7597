//! Runs etsy's server from npm without sockets.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use crate::{Flushes, InputStep};

/// The latest version.
const PACKAGE: &str = "statsd@0.9.0";

/// An installation of etsy's server.
pub(crate) struct Etsy {
    folder: PathBuf,
}

/// Installs the server once per target folder; `None`, with a message, if that is not possible.
pub(crate) fn install() -> Option<Etsy> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("npm");
    let etsy = Etsy { folder };
    if etsy.script().exists() {
        return Some(etsy);
    }
    // Installed into a temporary folder, then renamed, because several tests may do this
    // concurrently.
    let fresh = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let npm = Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"])
        .arg("--prefix")
        .arg(fresh.path())
        .arg(PACKAGE)
        .output();
    let why = match npm {
        Ok(output) if output.status.success() => {
            // Losing the race is fine: the other installation is identical.
            let _ = fs::rename(fresh.path(), &etsy.folder);
            return Some(etsy);
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => format!("npm: {error}"),
    };
    let required = std::env::var_os("HOWDAH_REQUIRE_NPM").is_some();
    assert!(!required, "{PACKAGE} cannot be installed: {why}");
    eprintln!("skipped: {PACKAGE} cannot be installed here: {why}");
    None
}

impl Etsy {
    /// The script for node.
    pub(crate) fn script(&self) -> PathBuf {
        self.folder.join("node_modules/statsd/stats.js")
    }

    /// Runs the steps; an error if the server exits before their end.
    pub(crate) fn run(&self, config: &str, steps: &[InputStep]) -> Result<Flushes, String> {
        let work = tempfile::tempdir().unwrap();
        let pipe = work.path().join("steps.json");
        let steps: Vec<Value> = steps
            .iter()
            .map(|step| match step {
                InputStep::Packet(bytes) => json!(["packet", base64(bytes)]),
                InputStep::Flush => json!(["flush"]),
            })
            .collect();
        fs::write(&pipe, serde_json::to_vec(&steps).unwrap()).unwrap();
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference_servers/pipe.js");
        // The string '0' selects a free port; the number 0 would select the default port.
        let own = format!(
            "pipe: {pipe:?}, servers: [{{ server: {module:?}, pipe: {pipe:?} }}], \
             backends: [{module:?}], mgmt_port: '0', mgmt_address: '127.0.0.1', \
             automaticConfigReload: false, "
        );
        let file = work.path().join("config.js");
        fs::write(&file, config.replacen('{', &format!("{{ {own}"), 1)).unwrap();
        let output = Command::new("node").arg(self.script()).arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let snapshots = text.lines().filter(|line| line.starts_with("{\"counters\""));
        let flushes =
            snapshots.map(|line| flattened(&serde_json::from_str(line).unwrap())).collect();
        if output.status.success() {
            Ok(flushes)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

fn flattened(snapshot: &Value) -> BTreeMap<String, f64> {
    fn into(path: &str, value: &Value, flat: &mut BTreeMap<String, f64>) {
        match value {
            Value::Object(map) => {
                let inside = |(key, value)| into(&format!("{path}/{key}"), value, flat);
                map.iter().for_each(inside);
            }
            Value::Number(number) => drop(flat.insert(path.to_owned(), number.as_f64().unwrap())),
            Value::String(text) => {
                let number = match text.as_str() {
                    "Infinity" => f64::INFINITY,
                    "-Infinity" => f64::NEG_INFINITY,
                    _ => f64::NAN,
                };
                flat.insert(path.to_owned(), number);
            }
            _ => {}
        }
    }
    let mut flat = BTreeMap::new();
    into("", snapshot, &mut flat);
    let flat = flat.into_iter().map(|(key, value)| (key.trim_start_matches('/').to_owned(), value));
    // This gauge depends on the clock.
    flat.filter(|(key, _)| !key.ends_with(".timestamp_lag")).collect()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let three = chunk.iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
        let bits = three << (8 * (3 - chunk.len()));
        let digits = (0..=chunk.len()).map(|at| DIGITS[bits >> (18 - 6 * at) & 63] as char);
        text.extend(digits);
        text.extend(std::iter::repeat_n('=', 3 - chunk.len()));
    }
    text
}

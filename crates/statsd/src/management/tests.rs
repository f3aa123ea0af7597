//! Complete transcripts in both dialects, byte for byte.

use std::time::SystemTime;

use super::reply::{CommandReply, ManagementSession, execute};
use crate::{
    aggregate::SharedShard,
    backends::{BackendStatus, SnapshotRequirements},
    flush::KeyRegistry,
    ledger::{LossAccount, LossLedger, SocketAccount},
    server::{CoreParts, ServerCore},
    settings::{StatsdDialect, StatsdSettings},
};

struct FixedLedger;

impl LossLedger for FixedLedger {
    fn read(&self) -> LossAccount {
        let socket = SocketAccount {
            name: "udp 127.0.0.1:8125".to_owned(),
            packets_total: 7,
            bytes_total: 70,
            drops_total: 2,
            unread_bytes: 0,
            buffer_bytes: 425_984,
            ..SocketAccount::default()
        };
        LossAccount { sockets: vec![socket], backlog_drops_total: 1 }
    }
}

fn core(dialect: StatsdDialect) -> (ServerCore, SharedShard) {
    core_with(StatsdSettings { dialect, ..StatsdSettings::default() })
}

fn core_with(settings: StatsdSettings) -> (ServerCore, SharedShard) {
    let started = SystemTime::now();
    let mut registry = KeyRegistry::new(&settings, SnapshotRequirements::default(), started);
    let shard = registry.shard();
    let graphite = BackendStatus::default();
    let console = BackendStatus::default();
    let since = started.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    for (name, value) in [("flush_time", 12.0), ("flush_length", 345.0), ("spooled", 0.0)] {
        graphite.set(name, value);
    }
    for name in ["last_flush", "last_exception"] {
        graphite.set(name, since);
        console.set(name, since);
    }
    let statuses = vec![("graphite", graphite), ("console", console)];
    let lines = ["port: 8125", "backends > 0: ./backends/console"].map(str::to_owned);
    let parts = CoreParts {
        config_lines: lines.into(),
        ledger: std::sync::Arc::new(FixedLedger),
        statuses,
        repeater: None,
        proxy: None,
        forwarded: crate::forwarding::SequenceTable::default(),
    };
    (ServerCore::new(settings, registry, parts, started), shard)
}

/// Returns a transcript of commands and replies. Ages are masked and control characters escaped.
fn transcript(core: &ServerCore, commands: &[&str]) -> String {
    let mut session = ManagementSession::default();
    let mut transcript = String::new();
    for command in commands {
        let (reply, end) = match execute(core, &mut session, &format!("{command}\r\n")) {
            CommandReply::Text(reply) => (reply, ""),
            CommandReply::Close(reply) => (reply, "(closed)\n"),
        };
        transcript += &format!("> {command}\n");
        for line in reply.split_inclusive('\n') {
            let aged = line.starts_with("uptime: ") || line.contains(".last");
            let line = match line.split_once(": ") {
                Some((name, _)) if aged => format!("{name}: AGE\n"),
                _ => line.replace('\r', "\\r"),
            };
            transcript += &line;
        }
        transcript += end;
    }
    transcript
}

const TRAFFIC: &[u8] =
    b"a.b:1.5|c\na.b:1|c|@0.5\n7:1|c\nt:3|ms\nt:1|ms\nlong.timer:1:2:3:4:5:6:7|ms\n\
    temp.x:1|g\ntemp.y:2|g\nother:-3|g\nusers:ann|s\nusers:bob|s\nnonsense\nx:1_0|c\n_sc|db|0";

const COMMON: [&str; 21] = [
    "help",
    "stats",
    "counters",
    "timers",
    "gauges",
    "sets",
    "delcounters a.b never.seen",
    "delgauges temp.*",
    "deltimers",
    "counters",
    "gauges",
    "health",
    "health DOWN",
    "health sideways",
    "config",
    "",
    "what is this",
    "top 2",
    "drops",
    "bad",
    "quit",
];

#[test]
fn etsy_transcript() {
    let (core, shard) = core(StatsdDialect::Etsy);
    shard.lock().apply_packet(TRAFFIC);
    insta::assert_snapshot!(transcript(&core, &COMMON));
    assert!(!core.is_healthy());
}

#[test]
fn reload_applies_changed_health_only() {
    let (core, _shard) = core(StatsdDialect::Etsy);
    let up = StatsdSettings::clone(&core.settings());
    let down = StatsdSettings { healthy: false, ..up.clone() };
    core.set_healthy(false);
    assert!(core.reload(&up, Vec::new()).is_empty());
    assert!(!core.is_healthy());
    core.set_healthy(true);
    assert!(core.reload(&down, Vec::new()).is_empty());
    assert!(!core.is_healthy());
    assert!(core.reload(&up, Vec::new()).is_empty());
    assert!(core.is_healthy());
}

#[test]
fn perl_transcript() {
    let (core, shard) = core(StatsdDialect::Perl);
    shard.lock().apply_packet(TRAFFIC);
    insta::assert_snapshot!(transcript(&core, &COMMON));
    assert!(core.is_healthy());
}

#[test]
fn json_is_one_document_per_line() {
    let (core, shard) = core(StatsdDialect::Etsy);
    shard.lock().apply_packet(TRAFFIC);
    shard.lock().apply_packet(b"quote\"d:1|s");
    let mut session = ManagementSession::default();
    let mut request = |command: &str| match execute(&core, &mut session, command) {
        CommandReply::Text(reply) => reply,
        CommandReply::Close(reply) => reply,
    };
    assert_eq!(request("format json"), "format: json\n");
    for command in [
        "counters",
        "timers",
        "gauges",
        "sets",
        "top",
        "stats",
        "bad",
        "drops",
        "health",
        "config",
        "help",
        "delcounters a.x b",
    ] {
        let reply = request(command);
        assert_eq!(reply.matches('\n').count(), 1, "{reply}");
        serde_json::from_str::<serde_json::Value>(&reply).unwrap();
    }
    let counters: serde_json::Value = serde_json::from_str(&request("counters")).unwrap();
    assert_eq!(counters["a.b"], 3.5);
    assert_eq!(request("format text"), "format: text\n");
    assert_eq!(request("format yaml"), "ERROR\n");
}

#[test]
fn cut_shows_effects_of_rules() {
    let rules = "[[rules]]\nid = 'debug'\nname = 'debug.**'\naction = 'drop'\n\
                 [[rules]]\ndrop-tags = ['pod']\n";
    let settings = toml::from_str::<StatsdSettings>(rules).unwrap();
    let (core, shard) = core_with(settings);
    let mut session = ManagementSession::default();
    let mut request = |command: &str| match execute(&core, &mut session, command) {
        CommandReply::Text(reply) | CommandReply::Close(reply) => reply,
    };
    shard.lock().apply_packet(b"debug.a:1|c\ndebug.b:1:2|ms\nx:1|c|#pod:1\ny:1|c\n");
    let reply = request("cut").lines().map(masked).collect::<Vec<_>>().join("\n");
    assert_eq!(
        reply,
        "rule debug: dropped 3 changed 0 keys 2 seconds AGE\n  debug.a\n  debug.b\n\
         rule rule-2: dropped 0 changed 1 keys 1 seconds AGE\n  x|#pod:1\nEND\n"
    );
    assert!(request("help").ends_with("config, cut, quit\n\n"));
    request("format json");
    let reply: serde_json::Value = serde_json::from_str(&request("cut")).unwrap();
    assert_eq!(reply["rules"][0]["dropped"], 3);
    assert_eq!(reply["rules"][1]["examples"][0], "x|#pod:1");
}

/// Replaces the age at the end of a line.
fn masked(line: &str) -> String {
    match line.split_once(" seconds ") {
        Some((front, _)) => format!("{front} seconds AGE"),
        None => line.to_owned(),
    }
}

#[test]
fn queries_do_not_finish_running_interval() {
    let (core, shard) = core(StatsdDialect::Etsy);
    let mut session = ManagementSession::default();
    shard.lock().apply_packet(b"t:1|ms");
    let timers = "{ t: [ 1 ] }\nEND\n\n".to_owned();
    assert_eq!(execute(&core, &mut session, "timers"), CommandReply::Text(timers));
    shard.lock().apply_packet(b"t:2|ms");
    let timers = "{ t: [ 1, 2 ] }\nEND\n\n".to_owned();
    assert_eq!(execute(&core, &mut session, "timers"), CommandReply::Text(timers));
}

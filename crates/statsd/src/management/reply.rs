//! Executes management commands and formats their replies.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::cut::{cut_text, cut_value};
use crate::{
    aggregate::MetricType,
    backends::{LOST_VALUES, SPOOL_BATCHES, SPOOL_BYTES},
    flush::{DeleteOutcome, KeyRegistry, MetricTable},
    grammar::RejectReason,
    js::{
        self, InspectOptions, JsNumber, JsValue,
        Spacing::{Compact, Spaced},
    },
    proxy::StatsdProxy,
    self_metrics::{
        BAD_LINES_SEEN, DENIED, EVENTS, FAILED_HANDSHAKES, MESSAGES_DROPPED, SERVICE_CHECKS,
        TIMESTAMPS_IGNORED, short_name,
    },
    server::ServerCore,
    settings::StatsdDialect,
};

/// The state of one connection to the management port.
#[derive(Debug, Default)]
pub(super) struct ManagementSession {
    json: bool,
}

/// The text to send after a command, and whether the connection stays open.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CommandReply {
    /// Send the text and continue.
    Text(String),
    /// Send the text and close the connection.
    Close(String),
}

/// Executes one command line, with or without newline.
pub(super) fn execute(
    core: &ServerCore,
    session: &mut ManagementSession,
    line: &str,
) -> CommandReply {
    let settings = core.settings();
    let perl = settings.dialect == StatsdDialect::Perl;
    let mut arguments: Vec<String> = if perl {
        line.split_whitespace().map(str::to_owned).collect()
    } else {
        line.trim().split(' ').map(str::to_owned).collect()
    };
    let command = if arguments.is_empty() { String::new() } else { arguments.remove(0) };
    if let Some(proxy) = core.proxy() {
        return execute_on_proxy(core, proxy, session, &command, &arguments);
    }
    CommandReply::Text(match command.as_str() {
        "help" => help(core, session, perl),
        "quit" => return CommandReply::Close(String::new()),
        "stats" => stats(core, session, perl),
        "counters" | "timers" | "gauges" | "sets" => values(core, session, &command, perl),
        "delcounters" => delete(core, session, MetricType::Counter, &arguments, perl),
        "deltimers" => delete(core, session, MetricType::Timer, &arguments, perl),
        "delgauges" => delete(core, session, MetricType::Gauge, &arguments, perl),
        "delsets" => delete(core, session, MetricType::Set, &arguments, perl),
        "health" if !perl => health(core, session, &arguments),
        "config" if !perl => config(core, session),
        "format" => format(session, &arguments),
        "top" => top(core, session, &arguments),
        "drops" => drops(core, session),
        "bad" => bad(core, session),
        "cut" => cut(core, session),
        _ => "ERROR\n".to_owned(),
    })
}

const HELP_ETSY: &str = "Commands: stats, counters, timers, gauges, delcounters, deltimers, \
                         delgauges, health, config, quit\n\n";
const HELP_PERL: &str = "Commands: stats, counters, timers, gauges, delcounters, deltimers, \
                         delgauges, quit\r\n\r\n";
const END: &str = "END\n\n";

/// The order of status fields in etsy's Graphite backend; other fields follow.
const FIELD_ORDER: [&str; 4] = ["last_flush", "last_exception", "flush_time", "flush_length"];

/// Executes a command for a proxy. The commands are those of etsy's proxy, and `format`, `stats`
/// and `drops`.
fn execute_on_proxy(
    core: &ServerCore,
    proxy: &StatsdProxy,
    session: &mut ManagementSession,
    command: &str,
    arguments: &[String],
) -> CommandReply {
    CommandReply::Text(match command {
        "help" => "Commands: config, health, status, quit\n\n".to_owned(),
        "quit" => return CommandReply::Close(String::new()),
        "config" => config(core, session),
        "health" => health(core, session, arguments),
        "status" => {
            let uptime = JsNumber(seconds(SystemTime::now()) - seconds(core.started()));
            let nodes: String =
                proxy.nodes_up().into_iter().map(|node| format!("{node} ")).collect();
            format!("uptime: {uptime}\nnodes: {nodes}\n")
        }
        "format" => format(session, arguments),
        "stats" => stats(core, session, false),
        "drops" => drops(core, session),
        _ => "ERROR\n".to_owned(),
    })
}

/// Formats a JSON document on one line.
fn document(value: &JsValue) -> String {
    format!("{}\n", js::json(value, Compact))
}

/// Returns an object with the given keys and values.
fn fields<const N: usize>(entries: [(&str, JsValue); N]) -> JsValue {
    JsValue::Object(entries.map(|(key, value)| (key.into(), value)).into())
}

fn text(text: &str) -> JsValue {
    JsValue::Text(text.into())
}

fn help(core: &ServerCore, session: &ManagementSession, perl: bool) -> String {
    let help = if perl { HELP_PERL } else { HELP_ETSY };
    // With settings that the other servers do not have, the list has the command for them.
    let settings = core.settings();
    let limits = &settings.limits;
    let has_limits = limits.keys_per_prefix > 0 || !limits.prefix.is_empty();
    let can_cut = has_limits || !settings.rules.is_empty();
    let help = if can_cut { help.replace(", quit", ", cut, quit") } else { help.to_owned() };
    if !session.json {
        return help;
    }
    let commands = help.trim().split_once(": ").map_or("", |(_, commands)| commands);
    document(&fields([("commands", JsValue::Array(commands.split(", ").map(text).collect()))]))
}

fn stats(core: &ServerCore, session: &ManagementSession, perl: bool) -> String {
    let now = seconds(SystemTime::now());
    let account = core.ledger().read();
    let registry = core.running_interval();
    let totals = registry.totals();
    let last = totals.last_packet.map_or(seconds(core.started()), seconds);
    let mut rows = vec![("uptime".to_owned(), now - seconds(core.started()))];
    let mut row = |group: &str, name: &str, value: f64| {
        let value = if name.starts_with("last_") { now - value } else { value };
        rows.push((format!("{group}.{name}"), value));
    };
    row("messages", "last_msg_seen", last);
    row("messages", short_name(&BAD_LINES_SEEN), totals.rejects.total() as f64);
    // Etsy's server does not have these counts; they are included only if they are not zero.
    let dropped = [
        (&EVENTS, totals.events),
        (&SERVICE_CHECKS, totals.checks),
        (&MESSAGES_DROPPED, totals.messages_dropped),
        (&TIMESTAMPS_IGNORED, totals.timestamps),
        (&DENIED, account.denied_total()),
        (&FAILED_HANDSHAKES, account.failed_handshakes_total()),
    ];
    for (metric, count) in dropped.into_iter().filter(|(_, count)| *count > 0) {
        row("messages", short_name(metric), count as f64);
    }
    for (name, status) in core.statuses() {
        let mut values = status.all();
        values.sort_by_key(|(key, _)| {
            FIELD_ORDER.iter().position(|first| first == key).unwrap_or(FIELD_ORDER.len())
        });
        let exact = !core.settings().aggregation.extra_metrics;
        for (key, value) in values {
            match (name, key) {
                // Without extra metrics the reply is etsy's, except when there are spooled or lost
                // values.
                (_, SPOOL_BYTES | SPOOL_BATCHES | LOST_VALUES) if exact && value == 0.0 => {}
                // Etsy's console backend uses different names, and never updates the times.
                ("console", "last_flush") if !perl => {
                    row(name, "lastFlush", seconds(core.started()));
                }
                ("console", "last_exception") if !perl => {
                    row(name, "lastException", seconds(core.started()));
                }
                _ => row(name, key, value),
            }
        }
    }
    if session.json {
        let rows = rows.into_iter().map(|(name, value)| (name.into(), JsValue::Number(value)));
        return document(&JsValue::Object(rows.collect()));
    }
    let lines = rows.into_iter().map(|(name, value)| format!("{name}: {}\n", JsNumber(value)));
    lines.collect::<String>() + END
}

/// Executes `counters`, `timers`, `gauges` or `sets`: returns the values of the running interval.
fn values(core: &ServerCore, session: &ManagementSession, kind: &str, perl: bool) -> String {
    let values = {
        let registry = core.running_interval();
        match kind {
            "counters" => counters(&registry),
            "timers" => timers(&registry),
            "gauges" => gauges(&registry),
            _ => sets(&registry),
        }
    };
    match (session.json, perl) {
        (true, _) => format!("{}\n", js::json(&values, Compact)),
        // In the Perl server, timers and gauges are the received text; only sums are numbers.
        (false, true) if kind != "counters" => {
            format!("{}\n{END}", js::json(&values.with_text(), Spaced))
        }
        (false, true) => format!("{}\n{END}", js::json(&values, Spaced)),
        (false, false) => format!("{}\n{END}", js::inspect(&values, InspectOptions::default())),
    }
}

fn counters(registry: &KeyRegistry) -> JsValue {
    let entries = registry.counters.iter();
    object(entries.map(|entry| (entry.name.key(), JsValue::Number(entry.state.value))))
}

fn gauges(registry: &KeyRegistry) -> JsValue {
    let entries = registry.gauges.iter();
    object(entries.map(|entry| (entry.name.key(), JsValue::Number(entry.state.value()))))
}

fn timers(registry: &KeyRegistry) -> JsValue {
    object(registry.timers.iter().map(|entry| {
        let value = match &entry.state.sketched {
            Some(sketched) => {
                JsValue::Text(format!("{} samples, sketched", sketched.samples).into())
            }
            None => JsValue::Numbers(entry.state.samples.as_slice().into()),
        };
        (entry.name.key(), value)
    }))
}

fn sets(registry: &KeyRegistry) -> JsValue {
    object(registry.sets.iter().map(|entry| {
        let text = |member: &[u8]| String::from_utf8_lossy(member).into_owned();
        let mut members: Vec<String> =
            entry.state.members.iter().map(|member| text(member)).collect();
        members.sort_unstable();
        let members = members.into_iter().map(|member| JsValue::Text(member.into())).collect();
        (entry.name.key(), JsValue::Array(members))
    }))
}

/// Returns an object with JavaScript's key order: integers first, ascending, then the others as
/// inserted.
fn object<'k>(entries: impl Iterator<Item = (&'k str, JsValue)>) -> JsValue {
    let mut entries: Vec<(Box<str>, JsValue)> =
        entries.map(|(key, value)| (key.into(), value)).collect();
    let index = |key: &str| {
        let number: u32 = key.parse().ok()?;
        (number != u32::MAX && number.to_string() == key).then_some(number)
    };
    entries.sort_by_key(|(key, _)| index(key).map_or(u64::from(u32::MAX), u64::from));
    JsValue::Object(entries)
}

fn delete(
    core: &ServerCore,
    session: &ManagementSession,
    kind: MetricType,
    arguments: &[String],
    perl: bool,
) -> String {
    let mut registry = core.running_interval();
    let deleted = match kind {
        MetricType::Counter => delete_from(&mut registry.counters, arguments, perl),
        MetricType::Timer => delete_from(&mut registry.timers, arguments, perl),
        MetricType::Gauge => delete_from(&mut registry.gauges, arguments, perl),
        MetricType::Set => delete_from(&mut registry.sets, arguments, perl),
    };
    registry.delete_variants(kind);
    if session.json {
        let (mut gone, mut not_found) = (Vec::new(), Vec::new());
        for deleted in &deleted {
            match deleted {
                DeleteOutcome::Key(name) => gone.push(text(name.key())),
                DeleteOutcome::NotFound(key) => not_found.push(text(key)),
            }
        }
        let gone = ("deleted", JsValue::Array(gone));
        return document(&fields([gone, ("not_found", JsValue::Array(not_found))]));
    }
    if perl {
        let lines: String = arguments.iter().map(|key| format!("deleted: {key}\n")).collect();
        format!("{lines}\n{END}")
    } else {
        let lines: String = deleted
            .iter()
            .map(|deleted| match deleted {
                DeleteOutcome::Key(name) => format!("deleted: {name}\n"),
                DeleteOutcome::NotFound(key) => format!("metric {key} not found\n"),
            })
            .collect();
        format!("{lines}{END}")
    }
}

fn delete_from<S: Default>(
    table: &mut MetricTable<S>,
    arguments: &[String],
    perl: bool,
) -> Vec<DeleteOutcome> {
    table.delete(arguments, !perl)
}

fn health(core: &ServerCore, session: &ManagementSession, arguments: &[String]) -> String {
    match arguments.first().map(|argument| argument.to_lowercase()).as_deref() {
        Some("up") => core.set_healthy(true),
        Some("down") => core.set_healthy(false),
        _ => {}
    }
    let health = if core.is_healthy() { "up" } else { "down" };
    if session.json {
        document(&fields([("health", text(health))]))
    } else {
        format!("health: {health}\n")
    }
}

fn config(core: &ServerCore, session: &ManagementSession) -> String {
    if session.json {
        let lines = core.config_lines().iter().map(|line| text(line)).collect();
        return document(&fields([("config", JsValue::Array(lines))]));
    }
    let mut text = "\n".to_owned();
    for line in core.config_lines() {
        text += &line;
        text.push('\n');
    }
    text
}

fn format(session: &mut ManagementSession, arguments: &[String]) -> String {
    session.json = match arguments.first().map(String::as_str) {
        Some("json") => true,
        Some("text") => false,
        _ => return "ERROR\n".to_owned(),
    };
    format!("format: {}\n", arguments[0])
}

/// Executes `top [COUNT]`: returns the busiest metrics of the running interval, each with its
/// number of samples and its key.
fn top(core: &ServerCore, session: &ManagementSession, arguments: &[String]) -> String {
    let count = arguments.first().map_or(Ok(10), |argument| argument.parse::<usize>());
    let Ok(count) = count else { return "ERROR\n".to_owned() };
    let top = core.running_interval().top(count);
    let kind = |kind: MetricType| match kind {
        MetricType::Counter => "counter",
        MetricType::Timer => "timer",
        MetricType::Gauge => "gauge",
        MetricType::Set => "set",
    };
    if session.json {
        let row = |(of, name, hits): &(MetricType, crate::MetricName, u64)| {
            JsValue::Object(vec![
                ("key".into(), JsValue::Text(name.key().into())),
                ("kind".into(), JsValue::Text(kind(*of).into())),
                ("samples".into(), JsValue::Number(*hits as f64)),
            ])
        };
        return format!("{}\n", js::json(&JsValue::Array(top.iter().map(row).collect()), Compact));
    }
    let mut text = String::new();
    for (of, name, hits) in top {
        let _ = writeln!(text, "{hits} {} {name}", kind(of));
    }
    text + END
}

/// Executes `drops`: returns the received and lost packets per socket, and the host's backlog
/// drops.
fn drops(core: &ServerCore, session: &ManagementSession) -> String {
    let account = core.ledger().read();
    if session.json {
        let number = |number: u64| JsValue::Number(number as f64);
        let sockets = account.sockets.iter().map(|socket| {
            fields([
                ("socket", text(&socket.name)),
                ("packets", number(socket.packets_total)),
                ("dropped", number(socket.drops_total)),
                ("denied", number(socket.denied_total)),
                ("failed_handshakes", number(socket.failed_handshakes_total)),
                ("unread_bytes", number(socket.unread_bytes)),
                ("buffer_bytes", number(socket.buffer_bytes)),
            ])
        });
        return document(&fields([
            ("sockets", JsValue::Array(sockets.collect())),
            ("host_backlog_dropped", number(account.backlog_drops_total)),
        ]));
    }
    let mut text = String::new();
    for socket in &account.sockets {
        let _ = write!(
            text,
            "{}: packets {} dropped {} unread_bytes {} buffer_bytes {}",
            socket.name,
            socket.packets_total,
            socket.drops_total,
            socket.unread_bytes,
            socket.buffer_bytes
        );
        // Only listeners with access rules have these.
        let refused = [
            (short_name(&DENIED), socket.denied_total),
            (short_name(&FAILED_HANDSHAKES), socket.failed_handshakes_total),
        ];
        for (name, count) in refused.into_iter().filter(|(_, count)| *count > 0) {
            let _ = write!(text, " {name} {count}");
        }
        text.push('\n');
    }
    let _ = writeln!(text, "host backlog: dropped {}", account.backlog_drops_total);
    text + END
}

/// Executes `bad`: returns the numbers of bad values and lines by reason, and the most recent ones
/// with their age in seconds.
fn bad(core: &ServerCore, session: &ManagementSession) -> String {
    let now = SystemTime::now();
    let registry = core.running_interval();
    let rejects = &registry.totals().rejects;
    if session.json {
        let count = |reason: &RejectReason| JsValue::Number(rejects.count(*reason) as f64);
        let reasons =
            RejectReason::ALL.iter().map(|reason| (reason.as_str().into(), count(reason)));
        let recent = registry.recent().map(|(when, recent)| {
            let age = now.duration_since(*when).unwrap_or(Duration::ZERO).as_secs();
            fields([
                ("age", JsValue::Number(age as f64)),
                ("reason", text(recent.reason.as_str())),
                ("line", text(&recent.line)),
            ])
        });
        let recent = JsValue::Array(recent.collect());
        return document(&fields([
            ("reasons", JsValue::Object(reasons.collect())),
            ("recent", recent),
        ]));
    }
    let mut text = String::new();
    for reason in RejectReason::ALL.into_iter().filter(|reason| rejects.count(*reason) > 0) {
        let _ = writeln!(text, "{}: {}", reason.as_str(), rejects.count(reason));
    }
    for (when, recent) in registry.recent() {
        let age = now.duration_since(*when).unwrap_or(Duration::ZERO).as_secs();
        let _ = writeln!(text, "{age} {} {}", recent.reason.as_str(), recent.line);
    }
    text + END
}

/// Executes `cut`: returns the samples and keys that each rule dropped or changed, and those beyond
/// the limits of prefixes.
fn cut(core: &ServerCore, session: &ManagementSession) -> String {
    let registry = core.running_interval();
    let (rules, prefixes) = (registry.key_rules.tallies(), registry.key_rules.prefix_tallies());
    drop(registry);
    let now = SystemTime::now();
    if session.json {
        document(&cut_value(&rules, &prefixes, now))
    } else {
        cut_text(&rules, &prefixes, now) + END
    }
}

/// Returns the seconds since 1970, rounded.
fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64().round()
}

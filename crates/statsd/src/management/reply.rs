//! Commands to replies.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    aggregate::Kind,
    backends::{LOST_VALUES, SPOOL_BATCHES, SPOOL_BYTES},
    flush::{Deleted, Registry, Table},
    grammar::Reason,
    js::{
        self, Inspect, Number,
        Spacing::{Compact, Spaced},
        Value,
    },
    proxy::Proxy,
    server::Core,
    settings::Dialect,
};

/// What one connection has asked for.
#[derive(Debug, Default)]
pub(super) struct Session {
    json: bool,
}

/// What goes back.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Text; the connection stays.
    Reply(String),
    /// Text, and the end of the connection.
    Close(String),
}

/// Answers one command line, newline or not.
pub(super) fn answer(core: &Core, session: &mut Session, line: &str) -> Answer {
    let settings = core.settings();
    let perl = settings.dialect == Dialect::Perl;
    let mut words: Vec<String> = match perl {
        true => line.split_whitespace().map(str::to_owned).collect(),
        // At each single blank: two make an empty argument.
        false => line.trim().split(' ').map(str::to_owned).collect(),
    };
    let command = if words.is_empty() { String::new() } else { words.remove(0) };
    if let Some(proxy) = core.proxy() {
        return for_proxy(core, proxy, session, &command, &words);
    }
    Answer::Reply(match command.as_str() {
        "help" => help(session, perl),
        "quit" => return Answer::Close(String::new()),
        "stats" => stats(core, session, perl),
        "counters" | "timers" | "gauges" | "sets" => values(core, session, &command, perl),
        "delcounters" => delete(core, session, Kind::Counter, &words, perl),
        "deltimers" => delete(core, session, Kind::Timer, &words, perl),
        "delgauges" => delete(core, session, Kind::Gauge, &words, perl),
        "delsets" => delete(core, session, Kind::Set, &words, perl),
        "health" if !perl => health(core, session, &words),
        "config" if !perl => config(core, session),
        "format" => format(session, &words),
        "top" => top(core, session, &words),
        "drops" => drops(core, session),
        "bad" => bad(core, session),
        _ => "ERROR\n".to_owned(),
    })
}

const HELP_ETSY: &str = "Commands: stats, counters, timers, gauges, delcounters, deltimers, \
                         delgauges, health, config, quit\n\n";
const HELP_PERL: &str = "Commands: stats, counters, timers, gauges, delcounters, deltimers, \
                         delgauges, quit\r\n\r\n";
const END: &str = "END\n\n";

/// The order in which etsy's Graphite backend tells its account; what it has not comes after.
const FIRST: [&str; 4] = ["last_flush", "last_exception", "flush_time", "flush_length"];

/// Etsy's proxy has a port of its own kind.
fn for_proxy(
    core: &Core,
    proxy: &Proxy,
    session: &mut Session,
    command: &str,
    words: &[String],
) -> Answer {
    Answer::Reply(match command {
        "help" => "Commands: config, health, status, quit\n\n".to_owned(),
        "quit" => return Answer::Close(String::new()),
        "config" => config(core, session),
        "health" => health(core, session, words),
        "status" => {
            let uptime = Number(seconds(SystemTime::now()) - seconds(core.started()));
            let nodes: String =
                proxy.nodes_up().into_iter().map(|node| format!("{node} ")).collect();
            format!("uptime: {uptime}\nnodes: {nodes}\n")
        }
        "format" => format(session, words),
        "stats" => stats(core, session, false),
        "drops" => drops(core, session),
        _ => "ERROR\n".to_owned(),
    })
}

/// One JSON document on a line of its own.
fn document(value: &Value) -> String {
    format!("{}\n", js::json(value, Compact))
}

/// An object of a few known keys.
fn fields<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Object(entries.map(|(key, value)| (key.into(), value)).into())
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

fn help(session: &Session, perl: bool) -> String {
    let help = if perl { HELP_PERL } else { HELP_ETSY };
    if !session.json {
        return help.to_owned();
    }
    let commands = help.trim().split_once(": ").map_or("", |(_, commands)| commands);
    document(&fields([("commands", Value::Array(commands.split(", ").map(text).collect()))]))
}

fn stats(core: &Core, session: &Session, perl: bool) -> String {
    let now = seconds(SystemTime::now());
    let registry = core.running_interval();
    let totals = registry.totals();
    let last = totals.last_packet.map_or(seconds(core.started()), seconds);
    let mut rows = vec![("uptime".to_owned(), now - seconds(core.started()))];
    let mut row = |group: &str, name: &str, value: f64| {
        let value = if name.starts_with("last_") { now - value } else { value };
        rows.push((format!("{group}.{name}"), value));
    };
    row("messages", "last_msg_seen", last);
    row("messages", "bad_lines_seen", totals.rejects.total() as f64);
    // Etsy's server knows none of these; they are shown once there are some.
    let dropped = [
        ("events", totals.events),
        ("service_checks", totals.checks),
        ("timestamps_ignored", totals.timestamps),
    ];
    for (name, count) in dropped.into_iter().filter(|(_, count)| *count > 0) {
        row("messages", name, count as f64);
    }
    for (name, status) in core.statuses() {
        let mut values = status.all();
        values.sort_by_key(|(key, _)| {
            FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len())
        });
        let exact = !core.settings().aggregation.extra_metrics;
        for (key, value) in values {
            match (name, key) {
                // Who wants etsy's reply and not a word more gets one only when there is loss to tell.
                (_, SPOOL_BYTES | SPOOL_BATCHES | LOST_VALUES) if exact && value == 0.0 => {}
                // Etsy's console has other names, and never updates the times.
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
        let rows = rows.into_iter().map(|(name, value)| (name.into(), Value::Number(value)));
        return document(&Value::Object(rows.collect()));
    }
    let lines = rows.into_iter().map(|(name, value)| format!("{name}: {}\n", Number(value)));
    lines.collect::<String>() + END
}

/// The running interval's values of one kind.
fn values(core: &Core, session: &Session, kind: &str, perl: bool) -> String {
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
        // There, timers and gauges are the text that came; only what was added up is a number.
        (false, true) if kind != "counters" => {
            format!("{}\n{END}", js::json(&values.with_text(), Spaced))
        }
        (false, true) => format!("{}\n{END}", js::json(&values, Spaced)),
        (false, false) => format!("{}\n{END}", js::inspect(&values, Inspect::default())),
    }
}

fn counters(registry: &Registry) -> Value {
    let entries = registry.counters.iter();
    object(entries.map(|entry| (entry.name.key(), Value::Number(entry.state.value))))
}

fn gauges(registry: &Registry) -> Value {
    let entries = registry.gauges.iter();
    object(entries.map(|entry| (entry.name.key(), Value::Number(entry.state.value()))))
}

fn timers(registry: &Registry) -> Value {
    object(registry.timers.iter().map(|entry| {
        let value = match &entry.state.sketched {
            Some(sketched) => Value::Text(format!("{} samples, sketched", sketched.samples).into()),
            None => Value::Numbers(entry.state.samples.as_slice().into()),
        };
        (entry.name.key(), value)
    }))
}

fn sets(registry: &Registry) -> Value {
    object(registry.sets.iter().map(|entry| {
        let text = |member: &[u8]| String::from_utf8_lossy(member).into_owned();
        let mut members: Vec<String> =
            entry.state.members.iter().map(|member| text(member)).collect();
        members.sort_unstable();
        let members = members.into_iter().map(|member| Value::Text(member.into())).collect();
        (entry.name.key(), Value::Array(members))
    }))
}

/// An object as JavaScript orders its keys: whole numbers first, by size, then as inserted.
fn object<'k>(entries: impl Iterator<Item = (&'k str, Value)>) -> Value {
    let mut entries: Vec<(Box<str>, Value)> =
        entries.map(|(key, value)| (key.into(), value)).collect();
    let index = |key: &str| {
        let number: u32 = key.parse().ok()?;
        (number != u32::MAX && number.to_string() == key).then_some(number)
    };
    entries.sort_by_key(|(key, _)| index(key).map_or(u64::from(u32::MAX), u64::from));
    Value::Object(entries)
}

fn delete(core: &Core, session: &Session, kind: Kind, words: &[String], perl: bool) -> String {
    let mut registry = core.running_interval();
    let deleted = match kind {
        Kind::Counter => delete_from(&mut registry.counters, words, perl),
        Kind::Timer => delete_from(&mut registry.timers, words, perl),
        Kind::Gauge => delete_from(&mut registry.gauges, words, perl),
        Kind::Set => delete_from(&mut registry.sets, words, perl),
    };
    registry.delete_variants(kind);
    if session.json {
        let (mut gone, mut not_found) = (Vec::new(), Vec::new());
        for deleted in &deleted {
            match deleted {
                Deleted::Key(name) => gone.push(text(name.key())),
                Deleted::NotFound(key) => not_found.push(text(key)),
            }
        }
        let gone = ("deleted", Value::Array(gone));
        return document(&fields([gone, ("not_found", Value::Array(not_found))]));
    }
    match perl {
        // It says so of keys that were never there, too, and knows no wildcards.
        true => {
            let lines: String = words.iter().map(|key| format!("deleted: {key}\n")).collect();
            format!("{lines}\n{END}")
        }
        false => {
            let lines: String = deleted
                .iter()
                .map(|deleted| match deleted {
                    Deleted::Key(name) => format!("deleted: {name}\n"),
                    Deleted::NotFound(key) => format!("metric {key} not found\n"),
                })
                .collect();
            format!("{lines}{END}")
        }
    }
}

fn delete_from<S: Default>(table: &mut Table<S>, words: &[String], perl: bool) -> Vec<Deleted> {
    table.delete(words, !perl)
}

fn health(core: &Core, session: &Session, words: &[String]) -> String {
    match words.first().map(|word| word.to_lowercase()).as_deref() {
        Some("up") => core.set_healthy(true),
        Some("down") => core.set_healthy(false),
        _ => {}
    }
    let health = if core.is_healthy() { "up" } else { "down" };
    match session.json {
        true => document(&fields([("health", text(health))])),
        false => format!("health: {health}\n"),
    }
}

fn config(core: &Core, session: &Session) -> String {
    if session.json {
        let lines = core.config_lines().iter().map(|line| text(line)).collect();
        return document(&fields([("config", Value::Array(lines))]));
    }
    let mut text = "\n".to_owned();
    for line in core.config_lines() {
        text += &line;
        text.push('\n');
    }
    text
}

fn format(session: &mut Session, words: &[String]) -> String {
    session.json = match words.first().map(String::as_str) {
        Some("json") => true,
        Some("text") => false,
        _ => return "ERROR\n".to_owned(),
    };
    format!("format: {}\n", words[0])
}

/// `top [COUNT]`: samples and key of the busiest metrics in the running interval.
fn top(core: &Core, session: &Session, words: &[String]) -> String {
    let count = words.first().map_or(Ok(10), |word| word.parse::<usize>());
    let Ok(count) = count else { return "ERROR\n".to_owned() };
    let top = core.running_interval().top(count);
    let kind = |kind: Kind| match kind {
        Kind::Counter => "counter",
        Kind::Timer => "timer",
        Kind::Gauge => "gauge",
        Kind::Set => "set",
    };
    if session.json {
        let row = |(of, name, hits): &(Kind, crate::Name, u64)| {
            Value::Object(vec![
                ("key".into(), Value::Text(name.key().into())),
                ("kind".into(), Value::Text(kind(*of).into())),
                ("samples".into(), Value::Number(*hits as f64)),
            ])
        };
        return format!("{}\n", js::json(&Value::Array(top.iter().map(row).collect()), Compact));
    }
    let mut text = String::new();
    for (of, name, hits) in top {
        let _ = writeln!(text, "{hits} {} {name}", kind(of));
    }
    text + END
}

/// `drops`: what each socket got and lost, and what the host lost before.
fn drops(core: &Core, session: &Session) -> String {
    let account = core.ledger().read();
    if session.json {
        let number = |number: u64| Value::Number(number as f64);
        let sockets = account.sockets.iter().map(|socket| {
            fields([
                ("socket", text(&socket.name)),
                ("packets", number(socket.packets_total)),
                ("dropped", number(socket.drops_total)),
                ("unread_bytes", number(socket.unread_bytes)),
                ("buffer_bytes", number(socket.buffer_bytes)),
            ])
        });
        return document(&fields([
            ("sockets", Value::Array(sockets.collect())),
            ("host_backlog_dropped", number(account.backlog_drops_total)),
        ]));
    }
    let mut text = String::new();
    for socket in &account.sockets {
        let _ = writeln!(
            text,
            "{}: packets {} dropped {} unread_bytes {} buffer_bytes {}",
            socket.name,
            socket.packets_total,
            socket.drops_total,
            socket.unread_bytes,
            socket.buffer_bytes
        );
    }
    let _ = writeln!(text, "host backlog: dropped {}", account.backlog_drops_total);
    text + END
}

/// `bad`: bad lines by reason, and the last ones with their age in seconds.
fn bad(core: &Core, session: &Session) -> String {
    let now = SystemTime::now();
    let registry = core.running_interval();
    let rejects = &registry.totals().rejects;
    if session.json {
        let count = |reason: &Reason| Value::Number(rejects.count(*reason) as f64);
        let reasons = Reason::ALL.iter().map(|reason| (reason.as_str().into(), count(reason)));
        let recent = registry.recent().map(|(when, recent)| {
            let age = now.duration_since(*when).unwrap_or(Duration::ZERO).as_secs();
            fields([
                ("age", Value::Number(age as f64)),
                ("reason", text(recent.reason.as_str())),
                ("line", text(&recent.line)),
            ])
        });
        let recent = Value::Array(recent.collect());
        return document(&fields([
            ("reasons", Value::Object(reasons.collect())),
            ("recent", recent),
        ]));
    }
    let mut text = String::new();
    for reason in Reason::ALL.into_iter().filter(|reason| rejects.count(*reason) > 0) {
        let _ = writeln!(text, "{}: {}", reason.as_str(), rejects.count(reason));
    }
    for (when, recent) in registry.recent() {
        let age = now.duration_since(*when).unwrap_or(Duration::ZERO).as_secs();
        let _ = writeln!(text, "{age} {} {}", recent.reason.as_str(), recent.line);
    }
    text + END
}

/// Seconds since 1970, rounded.
fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64().round()
}

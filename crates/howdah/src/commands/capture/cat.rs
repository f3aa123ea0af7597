//! `howdah capture cat`: prints the events of a capture in time order.

use std::{
    fmt::Write as _,
    io::{self, Write},
    path::PathBuf,
};

use howdah_traffic::{
    Action, Bound, ClientMessage, CopyDirection, Event, EventHash, Kind, NamedObject, Parameter,
    Text, WireDetail,
};
use serde::{Serialize, Serializer};

use super::selection::{FilteredEvents, RedactArgs, SelectArgs};
use crate::{context::CommandContext, outcome::CommandOutcome, values::dataset_path};

/// Print the events of a capture in time order.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder of the capture
    #[arg(value_name = "CAPTURE", value_parser = dataset_path())]
    capture: PathBuf,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: CatFormat,
    /// Print event counts by kind and a hash over all events, instead of the events
    #[arg(long, conflicts_with = "format")]
    hash: bool,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    redact: RedactArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum CatFormat {
    /// One line per event, texts shortened
    #[default]
    Table,
    /// One JSON object per line, complete
    Ndjson,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let capture = super::open(&args.capture)?;
    let mut redactor = args.redact.redactor()?;
    let events = FilteredEvents::new(capture.events(), args.select.filter());
    let events = events.map(|event| match &mut redactor {
        Some(redactor) => event.map(|event| Box::new(redactor.redact(*event))),
        None => event,
    });
    let mut out = ctx.stdout();
    if args.hash {
        let mut hash = EventHash::default();
        for event in events {
            hash.add(&*event?);
        }
        write_hash(&mut out, &hash)?;
        return Ok(CommandOutcome::Done);
    }
    if args.format == CatFormat::Table {
        let head = ["time", "session", "kind", "user@database", "ms", "state", "sql"];
        write_row(&mut out, &head.map(str::to_owned))?;
    }
    for event in events {
        let event = event?;
        match args.format {
            CatFormat::Table => write_row(&mut out, &cells(&event))?,
            CatFormat::Ndjson => {
                serde_json::to_writer(&mut out, &EventLine::from_event(&event))
                    .map_err(io::Error::from)?;
                writeln!(out)?;
            }
        }
    }
    Ok(CommandOutcome::Done)
}

/// Prints event counts by kind and the hash, for `capture import --discard` and `capture cat
/// --hash`.
pub(super) fn write_hash(out: &mut impl Write, hash: &EventHash) -> io::Result<()> {
    for (kind, count) in hash.kinds() {
        writeln!(out, "{kind:<10} {count:>10}")?;
    }
    writeln!(out, "events     {:>10}", hash.events())?;
    writeln!(out, "hash       {hash}")
}

/// Writes one row. Column widths are fixed, because the output is a stream.
fn write_row(out: &mut impl Write, row: &[String; 7]) -> io::Result<()> {
    let [time, session, kind, identity, ms, state, text] = row;
    let row = format!(
        "{time:<27}  {session:<14}  {kind:<10}  {identity:<20}  {ms:>10}  {state:<5}  {text}"
    );
    writeln!(out, "{}", row.trim_end())
}

fn cells(event: &Event) -> [String; 7] {
    let ms = event.outcome.duration_us.map(|us| format!("{}.{:03}", us / 1000, us % 1000));
    let state = event.outcome.sqlstate.map(|code| code.to_string());
    let failed = if event.outcome.failed() { "error" } else { "" };
    [
        event.time.to_string(),
        printable(&event.session),
        event.action.kind().to_string(),
        printable(&format!("{}@{}", event.user, event.database)),
        ms.unwrap_or_default(),
        state.unwrap_or_else(|| failed.to_owned()),
        summary(event),
    ]
}

/// Returns the SQL text and values on one line, and the protocol messages if the event's kind does
/// not imply them.
fn summary(event: &Event) -> String {
    let text = match &event.action {
        Action::Call { function } => function.to_str_lossy(),
        other => other.sql().map(Text::to_str_lossy).unwrap_or_default(),
    };
    let mut line = shortened(&text, SQL_CHARS);
    let wire = event.wire.as_deref();
    let shown = |index: usize, text: &Text| match wire {
        Some(wire) if wire.is_binary(index) => hex(text.as_bytes()),
        _ => shortened(&text.to_str_lossy(), VALUE_CHARS),
    };
    let parameters = bound(&event.action).and_then(|bound| bound.parameters.as_ref());
    for (index, parameter) in parameters.into_iter().flatten().enumerate() {
        let number = index + 1;
        let _ = match parameter {
            Parameter::Null => write!(line, "  ${number}=NULL"),
            Parameter::Value(text) => write!(line, "  ${number}={}", shown(index, text)),
            Parameter::Truncated(text) => write!(line, "  ${number}={} (cut)", shown(index, text)),
        };
    }
    for (index, argument) in arguments(event).into_iter().flatten().enumerate() {
        let number = index + 1;
        let _ = match argument {
            None => write!(line, "  ${number}=NULL"),
            Some(text) => write!(line, "  ${number}={}", shown(index, text)),
        };
    }
    let messages = messages(event).filter(|_| has_notable_messages(wire));
    if let Some(messages) = messages {
        let _ = write!(line, "  [{}]", shortened(&messages.join(", "), MESSAGES_CHARS));
    }
    line.trim_start().to_owned()
}

fn arguments(event: &Event) -> Option<&[Option<Text>]> {
    event.wire.as_ref()?.arguments.as_deref()
}

/// Returns the protocol messages of an event, as text.
fn messages(event: &Event) -> Option<Vec<String>> {
    let messages = event.wire.as_ref()?.messages.as_ref()?;
    let own = match event.action.kind() {
        Kind::Parse => "Parse",
        Kind::Execute | Kind::Fetch => "Execute",
        Kind::Call => "FunctionCall",
        _ => "Query",
    };
    let with = |word: &str, name: &[u8]| {
        format!("{word} {}", String::from_utf8_lossy(name)).trim_end().to_owned()
    };
    let named = |word: &str, named: NamedObject<'_>| match named {
        NamedObject::Statement(name) => with(&format!("{word} statement"), name),
        NamedObject::Portal(name) => with(&format!("{word} portal"), name),
    };
    let names = ClientMessage::all(messages.as_bytes()).map(|message| match message {
        ClientMessage::EventMessage => own.to_owned(),
        ClientMessage::Bind(portal) => with("Bind", portal),
        ClientMessage::Describe(what) => named("Describe", what),
        ClientMessage::Close(what) => named("Close", what),
        ClientMessage::Flush => "Flush".to_owned(),
        ClientMessage::Sync => "Sync".to_owned(),
    });
    Some(names.collect())
}

/// Whether there are messages that the event's kind does not imply.
fn has_notable_messages(wire: Option<&WireDetail>) -> bool {
    let Some(messages) = wire.and_then(|wire| wire.messages.as_ref()) else { return false };
    let is_implied = |message: ClientMessage<'_>| {
        matches!(
            message,
            ClientMessage::EventMessage | ClientMessage::Bind(_) | ClientMessage::Sync
        )
    };
    let syncs = ClientMessage::all(messages.as_bytes())
        .filter(|message| *message == ClientMessage::Sync)
        .count();
    syncs > 1 || !ClientMessage::all(messages.as_bytes()).all(is_implied)
}

/// Formats a binary value in PostgreSQL's bytea hex format, up to [`VALUE_CHARS`] digits.
fn hex(bytes: &[u8]) -> String {
    let mut hex = String::from("\\x");
    for byte in bytes.iter().take(VALUE_CHARS / 2) {
        let _ = write!(hex, "{byte:02x}");
    }
    if bytes.len() > VALUE_CHARS / 2 {
        hex.push('…');
    }
    hex
}

/// Maximum characters of an SQL text in the table.
const SQL_CHARS: usize = 100;
/// Maximum characters of a value in the table.
const VALUE_CHARS: usize = 30;

/// Maximum characters of the messages in the table.
const MESSAGES_CHARS: usize = 120;

fn shortened(text: &str, chars: usize) -> String {
    let mut words = text.split_whitespace();
    let mut short = words.next().unwrap_or_default().to_owned();
    for word in words {
        if short.len() > chars * 4 {
            break;
        }
        short.push(' ');
        short.push_str(word);
    }
    match short.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", printable(&short[..end])),
        None => printable(&short),
    }
}

/// Replaces control characters: client text must not control the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn bound(action: &Action) -> Option<&Bound> {
    match action {
        Action::Bind(bound) | Action::Execute(bound) | Action::Fetch(bound) => Some(bound),
        _ => None,
    }
}

/// One object of `--format ndjson`. All keys are always present, in this order; null if the value
/// is unknown or does not apply. Invalid UTF-8 is replaced by U+FFFD; the capture files have the
/// exact bytes.
#[derive(Serialize)]
struct EventLine<'a> {
    #[serde(serialize_with = "as_text")]
    time: howdah_traffic::Timestamp,
    session: &'a str,
    kind: &'static str,
    user: Option<&'a str>,
    database: Option<&'a str>,
    application: Option<&'a str>,
    sql: Option<LossyText<'a>>,
    parameters: Option<Vec<Option<LossyText<'a>>>>,
    parameters_truncated: Option<Vec<usize>>,
    duration_us: Option<u64>,
    sqlstate: Option<String>,
    error: Option<LossyText<'a>>,
    statement: Option<LossyText<'a>>,
    portal: Option<LossyText<'a>>,
    copy_direction: Option<&'static str>,
    function: Option<LossyText<'a>>,
    source: &'static str,
    vxid: Option<&'a str>,
    query_id: Option<i64>,
    pipeline: Option<u32>,
    rows: Option<u64>,
    rows_max: Option<u32>,
    types: Option<&'a [u32]>,
    formats: Option<&'a [u16]>,
    result_formats: Option<&'a [u16]>,
    settings: Option<Vec<(LossyText<'a>, LossyText<'a>)>>,
    copy_bytes: Option<u64>,
    copy_data: Option<Vec<Option<LossyText<'a>>>>,
    copy_end: Option<&'static str>,
    arguments: Option<Vec<Option<LossyText<'a>>>>,
    messages: Option<Vec<String>>,
}

struct LossyText<'a>(&'a Text);

impl Serialize for LossyText<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0.to_str_lossy())
    }
}

fn as_text<S: Serializer>(time: &howdah_traffic::Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(time)
}

impl<'a> EventLine<'a> {
    fn from_event(event: &'a Event) -> Self {
        let known = |text: &'a str| (!text.is_empty()).then_some(text);
        let bound = bound(&event.action);
        let parameters = bound.and_then(|bound| bound.parameters.as_deref());
        let wire = event.wire.as_deref();
        let copy = wire.and_then(|wire| wire.copy_in.as_ref());
        Self {
            time: event.time,
            session: &event.session,
            kind: event.action.kind().as_str(),
            user: known(&event.user),
            database: known(&event.database),
            application: known(&event.application),
            sql: event.action.sql().map(LossyText),
            parameters: parameters.map(|values| values.iter().map(value).collect()),
            parameters_truncated: parameters.and_then(truncated),
            duration_us: event.outcome.duration_us,
            sqlstate: event.outcome.sqlstate.map(|code| code.to_string()),
            error: event.outcome.error.as_ref().map(LossyText),
            statement: match &event.action {
                Action::Parse { statement, .. } => Some(LossyText(statement)),
                _ => bound.map(|bound| LossyText(&bound.statement)),
            },
            portal: bound.map(|bound| LossyText(&bound.portal)),
            copy_direction: match &event.action {
                Action::Copy { direction: CopyDirection::In, .. } => Some("in"),
                Action::Copy { direction: CopyDirection::Out, .. } => Some("out"),
                _ => None,
            },
            function: match &event.action {
                Action::Call { function } => Some(LossyText(function)),
                _ => None,
            },
            source: event.source.as_str(),
            vxid: event.vxid.as_deref(),
            query_id: event.query_id,
            pipeline: event.pipeline,
            rows: wire.and_then(|wire| wire.rows),
            rows_max: wire.map(|wire| wire.rows_max),
            types: wire.map(|wire| &*wire.types).filter(|types| !types.is_empty()),
            formats: wire.map(|wire| &*wire.formats).filter(|formats| !formats.is_empty()),
            result_formats: wire
                .map(|wire| &*wire.result_formats)
                .filter(|formats| !formats.is_empty()),
            settings: wire.filter(|wire| !wire.settings.is_empty()).map(|wire| {
                wire.settings
                    .iter()
                    .map(|(name, value)| (LossyText(name), LossyText(value)))
                    .collect()
            }),
            copy_bytes: copy.map(|copy| copy.bytes),
            copy_data: copy.map(|copy| copy.data.iter().map(lossy).collect()),
            copy_end: copy.map(|copy| if copy.failed { "failed" } else { "done" }),
            arguments: arguments(event).map(|all| all.iter().map(lossy).collect()),
            messages: messages(event),
        }
    }
}

fn lossy(text: &Option<Text>) -> Option<LossyText<'_>> {
    text.as_ref().map(LossyText)
}

fn value(parameter: &Parameter) -> Option<LossyText<'_>> {
    match parameter {
        Parameter::Null => None,
        Parameter::Value(text) | Parameter::Truncated(text) => Some(LossyText(text)),
    }
}

/// Returns the positions, from 1, of the truncated values; `None` if there are none.
fn truncated(parameters: &[Parameter]) -> Option<Vec<usize>> {
    let cut = |(number, parameter): (usize, &Parameter)| {
        matches!(parameter, Parameter::Truncated(_)).then_some(number)
    };
    let numbers: Vec<usize> = (1..).zip(parameters).filter_map(cut).collect();
    (!numbers.is_empty()).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shortened_to_one_printable_line() {
        assert_eq!(shortened("select\n\t1\x1b[2J", 100), "select 1\u{fffd}[2J");
        assert_eq!(shortened("select 1", 6), "select…");
        assert_eq!(shortened(&"é".repeat(101), 100), format!("{}…", "é".repeat(100)));
    }

    fn event(action: Action, wire: Option<WireDetail>) -> Event {
        Event {
            time: howdah_traffic::Timestamp::from_micros(0),
            session: "s".into(),
            user: "".into(),
            database: "".into(),
            application: "".into(),
            action,
            outcome: howdah_traffic::CapturedOutcome::default(),
            source: howdah_traffic::Source::Wire,
            vxid: None,
            query_id: None,
            pipeline: None,
            wire: wire.map(Box::new),
        }
    }

    fn execute(values: Vec<Parameter>) -> Action {
        Action::Execute(Bound {
            statement: "s".into(),
            portal: "".into(),
            sql: "select $1, $2".into(),
            parameters: Some(values),
        })
    }

    #[test]
    fn row_has_values_and_truncation_marks() {
        let action = execute(vec![Parameter::Null, Parameter::Truncated("lo".into())]);
        assert_eq!(summary(&event(action, None)), "select $1, $2  $1=NULL  $2=lo (cut)");
    }

    #[test]
    fn row_has_binary_values_and_arguments_in_hex() {
        let binary = Text::from(&[0_u8, 0, 1, 255][..]);
        let wire = WireDetail { formats: vec![1, 0], ..WireDetail::default() };
        let values = vec![Parameter::Value(binary.clone()), Parameter::Value("x".into())];
        let shown = summary(&event(execute(values), Some(wire)));
        assert_eq!(shown, r"select $1, $2  $1=\x000001ff  $2=x");
        let arguments = Some(vec![Some(binary), None, Some(Text::from(&[7_u8; 16][..]))]);
        let wire = WireDetail { formats: vec![1], arguments, ..WireDetail::default() };
        let shown = summary(&event(Action::Call { function: "177".into() }, Some(wire)));
        assert_eq!(shown, format!(r"177  $1=\x000001ff  $2=NULL  $3=\x{}…", "07".repeat(15)));
    }

    #[test]
    fn row_has_messages_not_implied_by_the_kind() {
        let shown = |messages: &[u8]| {
            let wire = WireDetail { messages: Some(messages.into()), ..WireDetail::default() };
            summary(&event(execute(Vec::new()), Some(wire)))
        };
        assert_eq!(shown(b"B\0ES"), "select $1, $2");
        assert_eq!(
            shown(b"CSold\0SB\0DP\0EHS"),
            "select $1, $2  [Close statement old, Sync, Bind, Describe portal, Execute, Flush, Sync]"
        );
        assert_eq!(shown(b"SB\0ES"), "select $1, $2  [Sync, Bind, Execute, Sync]");
        let wire = WireDetail { messages: Some(b"CSa\x1b\0S"[..].into()), ..WireDetail::default() };
        let last = summary(&event(Action::Disconnect, Some(wire)));
        assert_eq!(last, "[Close statement a\u{fffd}, Sync]");
    }
}

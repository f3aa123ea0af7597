//! DogStatsD's events and service checks.
//!
//! ```text
//! event := "_e{" title bytes "," text bytes "}:" title "|" text field*
//! check := "_sc|" name "|" status field*
//! field := "|d:" seconds | "|h:" host | "|k:" key | "|p:" priority | "|s:" source | "|t:" alert
//!        | "|m:" message | "|#" tag ("," tag)* | "|c:" container | anything else, ignored
//! ```
//!
//! A field with an invalid value is ignored, because the rest of the message is still of use.

use memchr::memchr;

use super::{LineRules, TIME_MAX};

/// An event, with its texts unchanged. In title and text, `\n` in two characters is a line break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsdEvent<'p> {
    /// The whole line.
    pub line: &'p [u8],
    /// The title; not empty.
    pub title: &'p [u8],
    /// The text; may be empty.
    pub text: &'p [u8],
    /// The fields after the text.
    pub fields: MessageOptions<'p>,
}

/// A service check, with its texts unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsdCheck<'p> {
    /// The whole line.
    pub line: &'p [u8],
    /// The name; not empty.
    pub name: &'p [u8],
    /// The status of the service.
    pub status: CheckStatus,
    /// The fields after the status.
    pub fields: MessageOptions<'p>,
}

/// The optional fields of an event or a service check. A text that was not sent is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageOptions<'p> {
    /// The sender's time, in seconds since 1970.
    pub time: Option<i64>,
    /// The host that the message is about.
    pub host: &'p [u8],
    /// The bytes after `|#`.
    pub tags: &'p [u8],
    /// The sender's container, if the rules say so.
    pub container: &'p [u8],
    /// Events with the same key belong together.
    pub aggregation_key: &'p [u8],
    /// How important the event is.
    pub priority: EventPriority,
    /// The type of the event's source.
    pub source_type: &'p [u8],
    /// Whether the event is a success, a warning or an error.
    pub alert_type: AlertType,
    /// A service check's explanation of its status.
    pub message: &'p [u8],
}

/// How important an event is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventPriority {
    /// Also if the sender says nothing.
    #[default]
    Normal,
    /// Less important.
    Low,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlertType {
    /// Also if the sender says nothing.
    #[default]
    Info,
    /// Something went well.
    Success,
    /// Something needs attention.
    Warning,
    /// Something failed.
    Error,
}

/// The status of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckStatus {
    /// Sent as 0: the service works.
    #[default]
    Ok,
    /// Sent as 1: the service works, but needs attention.
    Warning,
    /// Sent as 2: the service does not work.
    Critical,
    /// Sent as 3: the check itself failed.
    Unknown,
}

impl EventPriority {
    /// Returns DogStatsD's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

impl AlertType {
    /// Returns DogStatsD's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Success => "success",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl CheckStatus {
    /// Returns the status in lowercase: `ok`, `warning`, `critical` or `unknown`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Critical => "critical",
            Self::Unknown => "unknown",
        }
    }
}

/// Parses an event, a line that starts with `_e{`; `None` if it is malformed or its lengths do not
/// match its text.
pub fn event(line: &[u8], rules: LineRules) -> Option<StatsdEvent<'_>> {
    let inside = line.strip_prefix(b"_e{")?;
    let close = memchr(b'}', inside)?;
    let comma = memchr(b',', &inside[..close])?;
    let title_bytes = length(&inside[..comma])?;
    let text_bytes = length(&inside[comma + 1..close])?;
    let rest = inside[close + 1..].strip_prefix(b":")?;
    let (title, rest) = rest.split_at_checked(title_bytes)?;
    let (text, rest) = rest.strip_prefix(b"|")?.split_at_checked(text_bytes)?;
    if title.is_empty() {
        return None;
    }
    let fields = match rest {
        [] => MessageOptions::default(),
        [b'|', list @ ..] => MessageOptions::read(list, rules),
        _ => return None,
    };
    Some(StatsdEvent { line, title, text, fields })
}

/// Parses a service check, a line that starts with `_sc|`; `None` if it has no name, or no status
/// from 0 to 3.
pub fn check(line: &[u8], rules: LineRules) -> Option<StatsdCheck<'_>> {
    let rest = line.strip_prefix(b"_sc|")?;
    let (name, rest) = rest.split_at(memchr(b'|', rest)?);
    let (status, list) = match rest {
        [b'|', status] => (status, &b""[..]),
        [b'|', status, b'|', list @ ..] => (status, list),
        _ => return None,
    };
    let status = match status {
        b'0' => CheckStatus::Ok,
        b'1' => CheckStatus::Warning,
        b'2' => CheckStatus::Critical,
        b'3' => CheckStatus::Unknown,
        _ => return None,
    };
    let fields = MessageOptions::read(list, rules);
    (!name.is_empty()).then_some(StatsdCheck { line, name, status, fields })
}

fn length(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl<'p> MessageOptions<'p> {
    fn read(list: &'p [u8], rules: LineRules) -> Self {
        let mut options = Self::default();
        let mut without_container = false;
        for field in list.split(|byte| *byte == b'|') {
            match field {
                [b'd', b':', digits @ ..] => options.time = time(digits),
                [b'h', b':', host @ ..] => options.host = host,
                [b'k', b':', key @ ..] => options.aggregation_key = key,
                b"p:low" => options.priority = EventPriority::Low,
                [b's', b':', source @ ..] => options.source_type = source,
                b"t:success" => options.alert_type = AlertType::Success,
                b"t:warning" => options.alert_type = AlertType::Warning,
                b"t:error" => options.alert_type = AlertType::Error,
                [b'm', b':', message @ ..] => options.message = message,
                [b'#', tags @ ..] => options.tags = tags,
                [b'c', b':', container @ ..] if rules.origin => options.container = container,
                b"card:none" => without_container = true,
                _ => {}
            }
        }
        if without_container {
            options.container = b"";
        }
        options
    }
}

fn time(digits: &[u8]) -> Option<i64> {
    let time = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (1..=TIME_MAX).contains(&time).then_some(time)
}

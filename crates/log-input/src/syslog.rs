//! Removes the headers of syslog files: RFC 3164 and 5424, with the time formats of rsyslog,
//! syslog-ng and `journalctl`.
//!
//! ```text
//! Nov 20 12:43:19 db postgres[18146]: [3-1] LOG:  …
//! 2026-11-20T12:43:19.577123+01:00 db postgres[18146]: [3-1] LOG:  …
//! <134>1 2026-11-20T12:43:19.577Z db postgres 18146 - - [3-1] LOG:  …
//! Fri 2026-11-20 12:43:19 UTC db postgres[18146]: [3-1] LOG:  …       journalctl -o short-full
//! 1795178599.577123 db postgres[18146]: [3-1] LOG:  …                 journalctl -o short-unix
//! ```
//!
//! Also those of [Heroku](super::heroku).

use std::borrow::Cow;

use super::{
    assembly::{Assembly, SyslogFragment},
    heroku::{self, HerokuMessage},
    layer::{Layer, LayerOutput},
    lines::{LineSplitter, WrappedLine},
    stamp::{self, Calendar, Stamp},
};
use crate::problem::InputProblem;

/// A layer that removes syslog headers, and assembles messages from their fragments.
#[derive(Debug)]
pub(super) struct SyslogLayer {
    lines: LineSplitter,
    calendar: Calendar,
    assembly: Assembly,
}

impl SyslogLayer {
    /// Creates a layer that rejects lines longer than `bytes_max`. `calendar` is that of the log's
    /// last line.
    pub(super) fn new(bytes_max: usize, calendar: Calendar) -> Self {
        Self { lines: LineSplitter::new(bytes_max), calendar, assembly: Assembly::new(bytes_max) }
    }
}

impl Layer for SyslogLayer {
    fn feed(&mut self, bytes: &[u8], output: &mut LayerOutput) {
        let Self { lines, calendar, assembly } = self;
        lines.feed(bytes, |line, number| read_line(line, number, *calendar, assembly, output));
    }

    fn idle(&mut self, output: &mut LayerOutput) {
        self.assembly.flush(output);
    }

    fn added_prefix(&self) -> Option<&'static str> {
        self.assembly.added_prefix()
    }

    fn finish(&mut self, output: &mut LayerOutput) {
        let Self { lines, calendar, assembly } = self;
        lines.finish(|line, number| read_line(line, number, *calendar, assembly, output));
        self.assembly.flush(output);
    }
}

fn read_line(
    line: WrappedLine<'_>,
    number: u64,
    calendar: Calendar,
    assembly: &mut Assembly,
    output: &mut LayerOutput,
) {
    let line = match line {
        WrappedLine::Whole([]) => return,
        // A line of journalctl itself: `-- Boot 5a3… --`.
        WrappedLine::Whole(line) if line.starts_with(b"-- ") => return,
        WrappedLine::Whole(line) => line,
        WrappedLine::TooLong(line) => {
            return output.add_problem(InputProblem::TooLong, number, line);
        }
    };
    let Some(header) = SyslogHeader::split(line, calendar) else {
        return output.add_problem(InputProblem::BadEnvelope, number, line);
    };
    let SyslogHeader { time, host, program, pid, text, may_be_server } = header;
    let (time, text) = (&*time, &*text);
    assembly.push_fragment(
        &SyslogFragment { time, host, program, pid, text, may_be_server, line: number },
        output,
    );
}

/// A message split into the fields of its header and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SyslogHeader<'a> {
    time: String,
    host: &'a [u8],
    program: &'a [u8],
    pid: &'a [u8],
    text: Cow<'a, [u8]>,
    /// Whether the program may be a server of any name.
    may_be_server: bool,
}

impl<'a> SyslogHeader<'a> {
    /// Splits a line; `None` if it does not begin with a syslog header.
    pub(super) fn split(line: &'a [u8], calendar: Calendar) -> Option<Self> {
        let line = without_length(line);
        let after_priority = priority_len(line);
        if after_priority > 0
            && let Some(rest) = line[after_priority..].strip_prefix(b"1 ")
        {
            return Self::split_rfc5424(rest);
        }
        let (time, rest) = time(&line[after_priority..], calendar)?;
        if let Some(message) = heroku::split_line(rest) {
            return Some(Self::from_heroku(time.text, message));
        }
        let (host, rest) = split_word(rest)?;
        let (tag, text) =
            split_at(rest, b": ").or_else(|| rest.strip_suffix(b":").map(|tag| (tag, &b""[..])))?;
        if tag.len() > TAG_BYTES_MAX || tag.contains(&b' ') {
            return None;
        }
        let (program, pid) = match tag.strip_suffix(b"]").and_then(|tag| split_at(tag, b"[")) {
            Some(split) => split,
            None => (tag, &b""[..]),
        };
        let text = Cow::Borrowed(text);
        Some(Self { time: time.text, host, program, pid, text, may_be_server: true })
    }

    fn from_heroku(time: String, message: HerokuMessage<'a>) -> Self {
        let HerokuMessage { attachment, pid, text } = message;
        let program: &[u8] = if pid.is_some() { b"postgres" } else { b"" };
        let pid = pid.unwrap_or_default();
        // Applications log errors that they get from the server with its labels.
        Self { time, host: attachment, program, pid, text, may_be_server: false }
    }

    /// Splits RFC 5424 after the version: time, host, program, process, message id, structured
    /// data.
    fn split_rfc5424(rest: &'a [u8]) -> Option<Self> {
        let (time, rest) = split_word(rest)?;
        let time = stamp::iso(time, false)?.text;
        let (host, rest) = split_word(rest)?;
        let (program, rest) = split_word(rest)?;
        let (pid, rest) = split_word(rest)?;
        let (_, rest) = split_word(rest)?;
        if let Some(message) = heroku::from_syslog(program, pid, rest) {
            return Some(Self::from_heroku(time, message));
        }
        let text = skip_structured(rest)?;
        let text = Cow::Borrowed(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text));
        Some(Self { time, host, program, pid, text, may_be_server: true })
    }
}

/// Maximum length of a tag: a program's name and a process id.
const TAG_BYTES_MAX: usize = 128;

/// Removes the length in front of a priority, `214 <134>`, by which RFC 6587 delimits messages.
fn without_length(line: &[u8]) -> &[u8] {
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match line[digits..].strip_prefix(b" ") {
        Some(rest @ [b'<', ..]) if (1..=LENGTH_DIGITS_MAX).contains(&digits) => rest,
        _ => line,
    }
}

const LENGTH_DIGITS_MAX: usize = 7;

/// Returns the length of the priority, such as `<134>`, at the front of a line; 0 if there is none.
fn priority_len(line: &[u8]) -> usize {
    match line {
        [b'<', a, b'>', ..] if a.is_ascii_digit() => 3,
        [b'<', a, b, b'>', ..] if [a, b].iter().all(|d| d.is_ascii_digit()) => 4,
        [b'<', a, b, c, b'>', ..] if [a, b, c].iter().all(|d| d.is_ascii_digit()) => 5,
        _ => 0,
    }
}

/// Splits off the time at the front and the space after it.
fn time(line: &[u8], calendar: Calendar) -> Option<(Stamp, &[u8])> {
    let weekday = match line.get(..4) {
        Some([a, b, c, b' ']) if [a, b, c].iter().all(|l| l.is_ascii_alphabetic()) => 4,
        _ => 0,
    };
    let full = || stamp::iso(&line[weekday..], true).filter(|_| weekday > 0);
    let parsed = stamp::bsd(line, calendar)
        .or_else(|| stamp::iso(line, false))
        .or_else(|| stamp::unix(line))
        .map(|stamp| (stamp, 0))
        .or_else(|| full().map(|stamp| (stamp, weekday)));
    let (stamp, before) = parsed?;
    let rest = line[before + stamp.len..].strip_prefix(b" ")?;
    Some((stamp, rest))
}

fn split_word(line: &[u8]) -> Option<(&[u8], &[u8])> {
    split_at(line, b" ").filter(|(word, _)| !word.is_empty())
}

fn split_at<'a>(bytes: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = memchr::memmem::find(bytes, separator)?;
    Some((&bytes[..at], &bytes[at + separator.len()..]))
}

/// Skips `-` or `[id key="value"]…` and the space after it.
fn skip_structured(bytes: &[u8]) -> Option<&[u8]> {
    if let Some(rest) = bytes.strip_prefix(b"-") {
        return Some(rest.strip_prefix(b" ").unwrap_or(rest));
    }
    let mut at = 0;
    let mut quoted = false;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b']' if !quoted && bytes.get(at + 1) != Some(&b'[') => {
                let rest = &bytes[at + 1..];
                return Some(rest.strip_prefix(b" ").unwrap_or(rest));
            }
            _ if at == 0 && *byte != b'[' => return None,
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn calendar() -> Calendar {
        Calendar::from_system_time(UNIX_EPOCH + Duration::from_secs(1_795_178_599))
    }

    #[test]
    fn all_headers_are_split() {
        for (line, time) in [
            ("Nov 20 12:43:19 db postgres[7]: [3-1] LOG:  x", "2026-11-20 12:43:19.000 LOCAL"),
            ("Nov 20 12:43:19.577 db postgres[7]: [3-1] LOG:  x", "2026-11-20 12:43:19.577 LOCAL"),
            ("<134>Nov 20 12:43:19 db postgres[7]: [3-1] LOG:  x", "2026-11-20 12:43:19.000 LOCAL"),
            (
                "2026-11-20T12:43:19.577+01:00 db postgres[7]: [3-1] LOG:  x",
                "2026-11-20 12:43:19.577 +0100",
            ),
            (
                "<134>1 2026-11-20T12:43:19.577Z db postgres 7 - - [3-1] LOG:  x",
                "2026-11-20 12:43:19.577 UTC",
            ),
            (
                "214 <134>1 2026-11-20T12:43:19.577Z db postgres 7 - - [3-1] LOG:  x",
                "2026-11-20 12:43:19.577 UTC",
            ),
            (
                "<1>1 2026-11-20T12:43:19Z db postgres 7 - [a b=\"\\\"]\"][c] \u{feff}[3-1] LOG:  x",
                "2026-11-20 12:43:19.000 UTC",
            ),
            (
                "Fri 2026-11-20 12:43:19 CET db postgres[7]: [3-1] LOG:  x",
                "2026-11-20 12:43:19.000 CET",
            ),
            ("1795178599.577123 db postgres[7]: [3-1] LOG:  x", "2026-11-20 12:43:19.577123 UTC"),
        ] {
            let header = SyslogHeader::split(line.as_bytes(), calendar()).expect(line);
            let expected = SyslogHeader {
                time: time.to_owned(),
                host: b"db",
                program: b"postgres",
                pid: b"7",
                text: Cow::Borrowed(b"[3-1] LOG:  x"),
                may_be_server: true,
            };
            assert_eq!(header, expected, "{line}");
        }
        for not in [
            "2026-11-20 12:43:19.577 UTC [7] LOG:  statement: select 1",
            "Nov 20 12:43:19",
            "<134>1 2026-11-20T12:43:19.577Z db postgres",
            "",
            "<",
        ] {
            assert_eq!(SyslogHeader::split(not.as_bytes(), calendar()), None, "{not}");
        }
    }
}

//! Writes jsonlog records, the form to which the captures of other tools are converted.

use super::json::push_string;

/// A record of one client action, captured by another tool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JsonLogRecord<'a> {
    /// Time in the form of `%m`.
    pub(super) time: &'a str,
    pub(super) user: &'a [u8],
    pub(super) database: &'a [u8],
    pub(super) session: &'a [u8],
    /// `LOG` unless set.
    pub(super) severity: Option<&'static str>,
    pub(super) sqlstate: Option<&'static str>,
    /// The message that the server would have written.
    pub(super) message: &'a [u8],
    /// The bound values, as written by [`push_value`].
    pub(super) values: Option<&'a [u8]>,
}

impl JsonLogRecord<'_> {
    /// Appends the record and a newline.
    pub(super) fn push(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        let detail = self.values.filter(|values| !values.is_empty());
        let detail = detail.map(|values| [b"Parameters: ", values].concat()).unwrap_or_default();
        for (name, text) in [
            ("timestamp", self.time.as_bytes()),
            ("user", self.user),
            ("dbname", self.database),
            ("session_id", self.session),
            ("error_severity", self.severity.unwrap_or("LOG").as_bytes()),
            ("state_code", self.sqlstate.unwrap_or_default().as_bytes()),
            ("message", self.message),
            ("detail", &detail),
            ("backend_type", b"client backend"),
        ] {
            push_member(name, text, out);
        }
        out.extend_from_slice(b"}\n");
    }
}

fn push_member(name: &str, text: &[u8], out: &mut Vec<u8>) {
    if text.is_empty() {
        return;
    }
    out.extend_from_slice(if out.last() == Some(&b'{') { b"\"" } else { b",\"" });
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    push_string(text, out);
}

/// Appends a bound value to a list, like `BuildParamLogString` in `params.c`.
pub(super) fn push_value(number: usize, value: Option<&[u8]>, out: &mut Vec<u8>) {
    let comma = if number == 1 { "" } else { ", " };
    out.extend(format!("{comma}${number} = ").bytes());
    match value {
        None => out.extend_from_slice(b"NULL"),
        Some(value) => {
            out.push(b'\'');
            for byte in value {
                out.extend(std::iter::repeat_n(*byte, 1 + usize::from(*byte == b'\'')));
            }
            out.push(b'\'');
        }
    }
}

#[test]
fn record_is_written_as_one_line() {
    let mut values = Vec::new();
    push_value(1, Some(b"o'brien\n"), &mut values);
    push_value(2, None, &mut values);
    let mut out = Vec::new();
    let record = JsonLogRecord {
        time: "2026-11-20 12:43:19.577 UTC",
        session: b"5.7",
        message: b"execute <unnamed>: select \"a\"",
        values: Some(&values),
        ..JsonLogRecord::default()
    };
    record.push(&mut out);
    let expected = "{\"timestamp\":\"2026-11-20 12:43:19.577 UTC\",\"session_id\":\"5.7\",\
                    \"error_severity\":\"LOG\",\"message\":\"execute <unnamed>: select \\\"a\\\"\",\
                    \"detail\":\"Parameters: $1 = 'o''brien\\n', $2 = NULL\",\
                    \"backend_type\":\"client backend\"}\n";
    assert_eq!(String::from_utf8_lossy(&out), expected);
}

//! [`EscapedFields`]: formats the fields of an event as `message name=value …`, always on one line.

use std::{
    error::Error,
    fmt::{self, Debug, Write as _},
};

use tracing::field::{Field, Visit};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{FormatFields, format::Writer},
};

use crate::printable::EscapingWriter;

/// A formatter of fields that, unlike that of `tracing-subscriber`, escapes text that may come from
/// a client or server.
#[derive(Debug)]
pub(super) struct EscapedFields;

impl<'w> FormatFields<'w> for EscapedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = FieldVisitor { writer, is_first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct FieldVisitor<'w> {
    writer: Writer<'w>,
    is_first: bool,
    result: fmt::Result,
}

impl FieldVisitor<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.writer.write_char(' ')?;
        }
        let name = field.name();
        if name != "message" {
            let name = name.strip_prefix("r#").unwrap_or(name);
            if self.writer.has_ansi_escapes() {
                write!(self.writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?;
            } else {
                write!(self.writer, "{name}=")?;
            }
        }
        EscapingWriter(&mut self.writer).write_fmt(value)
    }
}

impl Visit for FieldVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if self.result.is_ok() {
            self.result = self.write(field, format_args!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.record_debug(field, &format_args!("{value}")),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(error) = source {
            // Writing to a string cannot fail.
            let _ = write!(text, ": {error}");
            source = error.source();
        }
        self.record_debug(field, &format_args!("{text}"));
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use parking_lot::Mutex;
    use tracing_subscriber::{fmt, layer::SubscriberExt as _};

    use super::*;

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log_output(is_coloured: bool, log: impl FnOnce()) -> String {
        let lines = LogBuffer::default();
        let to = lines.clone();
        let layer = fmt::layer()
            .fmt_fields(EscapedFields)
            .with_ansi(is_coloured)
            .without_time()
            .with_target(false)
            .with_writer(move || to.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let text = lines.0.lock().clone();
        String::from_utf8(text).unwrap()
    }

    const HOSTILE: &str = "x\"\n2026-11-23 INFO forged\x1b[2J\r\u{202e}\u{9b}";

    #[test]
    fn hostile_field_values_stay_on_one_line() {
        let plain = |text: &str| !text.contains(|c: char| c.is_control() || c == '\u{202e}');
        for is_coloured in [false, true] {
            let text = log_output(is_coloured, || {
                let error = io::Error::other(HOSTILE);
                tracing::warn!(user = HOSTILE, why = %HOSTILE, debug = ?HOSTILE, %error, "{HOSTILE}");
                let error: &(dyn Error + 'static) = &error;
                tracing::warn!(error, "second");
            });
            let lines: Vec<_> = text.lines().collect();
            assert_eq!(lines.len(), 2, "{text}");
            for line in lines {
                // Only our own colours may remain.
                let mut line = line.to_owned();
                for colour in ["\x1b[33m", "\x1b[3m", "\x1b[2m", "\x1b[0m"] {
                    line = line.replace(colour, "");
                }
                assert!(plain(&line) && line.contains("forged"), "{line:?}");
            }
        }
    }

    #[test]
    fn fields_have_the_usual_format() {
        let text =
            log_output(false, || tracing::info!(user = "ann", count = 3, why = %"no", "hello"));
        assert_eq!(text, " INFO hello user=\"ann\" count=3 why=no\n");
    }
}

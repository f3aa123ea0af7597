//! Splits packets into lines and lines into values.

use memchr::{memchr, memchr2, memchr3, memmem, memrchr};

use super::{
    ADDEND_MAX, BadLine, LineRules, RejectReason, SampleSink, SampleValue, StatsdSample, TIME_MAX,
    TimingUnit, WEIGHT_MAX, message,
    number::{LeadingDecimal, addend, number},
};
use crate::settings::ExtraTypes;

/// Parses a packet, or any sequence of complete lines, and passes its content to `sink`.
#[inline]
pub fn packet(bytes: &[u8], rules: LineRules, sink: &mut impl SampleSink) {
    let mut rest = bytes;
    while !rest.is_empty() {
        if let Some((sample, line_bytes)) = simple_line(rest, rules) {
            sink.line();
            sink.sample(&sample);
            rest = &rest[line_bytes..];
            continue;
        }
        let end = memchr(b'\n', rest).unwrap_or(rest.len());
        if end > 0 {
            sink.line();
            general_line(&rest[..end], rules, sink);
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
}

/// Parses the most common forms of a line, `name:value|type` with or without a rate and tags after
/// it, at the start of `bytes`; also returns the line's length with its line break. `None` for any
/// other form.
///
/// It passes over each part of the line once, and yields what [`general_line`] would.
#[inline]
fn simple_line(bytes: &[u8], rules: LineRules) -> Option<(StatsdSample<'_>, usize)> {
    let colon = memchr3(b':', b'|', b'\n', bytes)?;
    // A line that starts with `_` may be an event.
    if bytes[colon] != b':' || bytes[0] == b'_' {
        return None;
    }
    let text = &bytes[colon + 1..];
    let LeadingDecimal { number, is_signed, length } = LeadingDecimal::parse(text)?;
    let (value, rest) = match &text[length..] {
        [b'|', b'c', rest @ ..] => (SampleValue::Count(number), rest),
        [b'|', b'g', rest @ ..] if is_signed && rules.signs_change_gauges => {
            (SampleValue::Change(number), rest)
        }
        [b'|', b'g', rest @ ..] => (SampleValue::Set(number), rest),
        [b'|', b'm', b's', rest @ ..] if number >= 0.0 => {
            (SampleValue::Timing(number, TimingUnit::Milliseconds), rest)
        }
        _ => return None,
    };
    let (rate, rest) = match rest {
        [b'|', b'@', rest @ ..] => simple_rate(rest, number, rules)?,
        rest => (1.0, rest),
    };
    let (tags, rest) = match rest {
        [b'|', b'#', rest @ ..] => rest.split_at(memchr2(b'|', b'\n', rest).unwrap_or(rest.len())),
        rest => (&b""[..], rest),
    };
    let line_break = match rest {
        [] => 0,
        [b'\n', ..] => 1,
        _ => return None,
    };
    let sample = StatsdSample { name: &bytes[..colon], tags, container: b"", value, rate };
    Some((sample, bytes.len() - rest.len() + line_break))
}

/// Parses the rate of `value` at the start of `text`, and returns it with the rest; `None` unless
/// it is a short decimal that is valid for every type.
#[inline]
fn simple_rate(text: &[u8], value: f64, rules: LineRules) -> Option<(f64, &[u8])> {
    let LeadingDecimal { number: rate, length, .. } = LeadingDecimal::parse(text)?;
    let is_valid = rate > 0.0
        && 1.0 / rate <= WEIGHT_MAX
        && value.abs() <= ADDEND_MAX * rate
        && !rules.rates_for_counters_only;
    is_valid.then(|| (rate, &text[length..]))
}

/// The type of a value, as given after `|`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueType {
    Count,
    Gauge,
    Timer(TimingUnit),
    Set,
    /// A gauge that is sent once.
    KeyValue,
    /// A counter's sum since the sender's start.
    Total,
}

impl ValueType {
    fn parse(text: &[u8], types: ExtraTypes) -> Self {
        match text.trim_ascii() {
            b"ms" => Self::Timer(TimingUnit::Milliseconds),
            b"h" | b"d" => Self::Timer(TimingUnit::Plain),
            b"g" => Self::Gauge,
            b"s" => Self::Set,
            b"kv" if types.kv => Self::KeyValue,
            b"C" if types.absolute_counter => Self::Total,
            _ => Self::Count,
        }
    }
}

/// Parses a line of any form; it is not empty.
pub(super) fn general_line(text: &[u8], rules: LineRules, sink: &mut impl SampleSink) {
    if text.starts_with(b"_e{") {
        return match message::event(text, rules) {
            Some(event) => sink.event(&event),
            None => sink.bad(BadLine { line: text, reason: RejectReason::BadEvent }),
        };
    }
    if text.starts_with(b"_sc|") {
        return match message::check(text, rules) {
            Some(check) => sink.check(&check),
            None => sink.bad(BadLine { line: text, reason: RejectReason::BadCheck }),
        };
    }
    let (head, tail) = match memmem::find(text, b"|#") {
        Some(at) => (&text[..at], &text[at + 2..]),
        None => (text, &b""[..]),
    };
    let tags_end = memchr(b'|', tail).unwrap_or(tail.len());
    let fields = tail.get(tags_end + 1..).unwrap_or_default();
    let Some(colon) = memchr(b':', head) else {
        return sink.bad(BadLine { line: text, reason: RejectReason::NoType });
    };
    let mut line = LineContext {
        line: text,
        name: &head[..colon],
        tags: &tail[..tags_end],
        fields: LineFields::default(),
        rules,
    };
    // Unknown fields after the tags are ignored: newer clients may send them.
    for field in fields.split(|byte| *byte == b'|') {
        if let Err(reason) = line.fields.read(field, rules, sink) {
            return sink.bad(BadLine { line: text, reason });
        }
    }
    line.values(&head[colon + 1..], sink);
}

/// The context shared by all values of a line.
struct LineContext<'p> {
    line: &'p [u8],
    name: &'p [u8],
    tags: &'p [u8],
    /// The fields after the tags.
    fields: LineFields<'p>,
    rules: LineRules,
}

/// The fields of a line, or of one of its values.
#[derive(Clone, Copy, Default)]
struct LineFields<'p> {
    rate: Option<f64>,
    /// Empty if there is none, or the rules exclude it.
    container: &'p [u8],
    /// Whether the sender asked for no container (`|card:none`).
    without_container: bool,
    /// The timestamp, unless the rules exclude it.
    time: Option<i64>,
}

impl<'p> LineFields<'p> {
    /// Reads one field; returns whether it is known.
    fn read(
        &mut self,
        field: &'p [u8],
        rules: LineRules,
        sink: &mut impl SampleSink,
    ) -> Result<bool, RejectReason> {
        match field {
            [b'@', text @ ..] => self.rate = Some(sample_rate(text)?),
            [b'T', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => {
                if rules.timestamps {
                    self.time = Some(timestamp(digits)?);
                } else {
                    sink.timestamped();
                }
            }
            [b'c', b':', container @ ..] if rules.origin => self.container = container,
            b"card:none" => self.without_container = true,
            [b'c' | b'e', b':', ..] | [b'c', b'a', b'r', b'd', b':', ..] => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn container(&self) -> &'p [u8] {
        if self.without_container { b"" } else { self.container }
    }
}

impl<'p> LineContext<'p> {
    /// Parses everything between the name and the tags: `1|c`, `1:2:3|ms|@0.1`, `1|c:2|ms`.
    fn values(&self, text: &'p [u8], sink: &mut impl SampleSink) {
        let (mut packed, mut start) = (0, 0);
        loop {
            let end = segment_end(text, start, self.rules);
            if let Some(bar) = memchr(b'|', &text[start..end]) {
                self.typed(&text[packed..start + bar], &text[start + bar + 1..end], sink);
                packed = end + 1;
            }
            if end == text.len() {
                break;
            }
            start = end + 1;
        }
        if let Some(untyped) = text.get(packed..) {
            for _ in untyped.split(|byte| *byte == b':') {
                self.bad(RejectReason::NoType, sink);
            }
        }
    }

    /// Parses packed values with their type and fields.
    fn typed(&self, values: &'p [u8], fields: &'p [u8], sink: &mut impl SampleSink) {
        let mut fields = fields.split(|byte| *byte == b'|');
        let kind = ValueType::parse(fields.next().unwrap_or_default(), self.rules.types);
        let fields = match self.fields(fields, sink) {
            Ok(fields) => fields,
            Err(reason) => {
                return values.split(|byte| *byte == b':').for_each(|_| self.bad(reason, sink));
            }
        };
        if kind == ValueType::Set && self.rules.dogstatsd_values {
            return self.value(values, kind, fields, sink);
        }
        for value in values.split(|byte| *byte == b':') {
            self.value(value, kind, fields, sink);
        }
    }

    /// Reads the fields after a type. As in etsy's server, an unknown field is an error only
    /// directly after the type; in DogStatsD it never is, because newer clients may send it.
    fn fields(
        &self,
        list: impl Iterator<Item = &'p [u8]>,
        sink: &mut impl SampleSink,
    ) -> Result<LineFields<'p>, RejectReason> {
        let mut fields = self.fields;
        for (at, field) in list.enumerate() {
            match fields.read(field, self.rules, sink)? {
                false if at > 0 || self.rules.dogstatsd_values => {}
                false if field.trim_ascii().is_empty() => return Err(RejectReason::BadRate),
                false => return Err(RejectReason::UnknownField),
                true => {}
            }
        }
        Ok(fields)
    }

    #[inline]
    fn value(
        &self,
        text: &'p [u8],
        kind: ValueType,
        fields: LineFields<'p>,
        sink: &mut impl SampleSink,
    ) {
        let signed = matches!(text, [b'+' | b'-', ..]) && self.rules.signs_change_gauges;
        let value = match kind {
            ValueType::Set => Ok(SampleValue::Member(if text.is_empty() { b"0" } else { text })),
            ValueType::Count | ValueType::Total => addend(text).map(SampleValue::Count),
            ValueType::Gauge if signed => addend(text).map(SampleValue::Change),
            ValueType::Gauge | ValueType::KeyValue => number(text).map(SampleValue::Set),
            ValueType::Timer(unit) => addend(text).and_then(|value| match unit {
                TimingUnit::Milliseconds if value < 0.0 => Err(RejectReason::NegativeTimer),
                _ => Ok(SampleValue::Timing(value, unit)),
            }),
        };
        let rate = match kind {
            ValueType::Gauge | ValueType::Timer(_) | ValueType::Set
                if self.rules.rates_for_counters_only =>
            {
                1.0
            }
            // These values are not samples of others.
            ValueType::KeyValue | ValueType::Total => 1.0,
            _ => fields.rate.unwrap_or(1.0),
        };
        match value {
            Ok(SampleValue::Count(value) | SampleValue::Timing(value, _))
                if rate != 1.0 && value.abs() > ADDEND_MAX * rate =>
            {
                self.bad(RejectReason::TooLarge, sink);
            }
            Ok(value) => {
                let container = fields.container();
                let (name, tags) = (self.name, self.tags);
                let sample = StatsdSample { name, tags, container, value, rate };
                match (fields.time, value) {
                    (time, _) if kind == ValueType::KeyValue => sink.timed_sample(&sample, time),
                    (None, _) if kind == ValueType::Total => sink.running_total(&sample),
                    (None, _) => sink.sample(&sample),
                    (time, SampleValue::Count(_) | SampleValue::Set(_))
                        if kind != ValueType::Total =>
                    {
                        sink.timed_sample(&sample, time);
                    }
                    // Other values cannot be assigned to a single moment.
                    (Some(_), _) => {
                        sink.timestamped();
                        if kind == ValueType::Total {
                            sink.running_total(&sample);
                        } else {
                            sink.sample(&sample);
                        }
                    }
                }
            }
            Err(reason) => self.bad(reason, sink),
        }
    }

    #[cold]
    fn bad(&self, reason: RejectReason, sink: &mut impl SampleSink) {
        sink.bad(BadLine { line: self.line, reason });
    }
}

/// Returns the end of the segment that starts at `start`: the next `:` that is not part of a field
/// such as `|c:container`. Such fields follow a type, so they come after the segment's second
/// `|`. In DogStatsD, every field but a rate or a timestamp may contain `:`.
fn segment_end(text: &[u8], start: usize, rules: LineRules) -> usize {
    let mut from = start;
    while let Some(colon) = memchr(b':', &text[from..]).map(|at| from + at) {
        let segment = &text[start..colon];
        let last = memrchr(b'|', segment).map(|bar| (&segment[..bar], &segment[bar + 1..]));
        match last {
            Some((before, field)) if has_colon(field, rules) && memchr(b'|', before).is_some() => {
                match memchr(b'|', &text[colon..]) {
                    Some(bar) => from = colon + bar,
                    None => return text.len(),
                }
            }
            _ => return colon,
        }
    }
    text.len()
}

/// Whether a `:` after the beginning of a field is part of the field.
fn has_colon(start: &[u8], rules: LineRules) -> bool {
    match start {
        b"c" | b"e" | b"card" => true,
        [b'@' | b'T', ..] => false,
        _ => rules.dogstatsd_values,
    }
}

fn sample_rate(text: &[u8]) -> Result<f64, RejectReason> {
    match number(text) {
        Ok(rate) if rate > 0.0 && 1.0 / rate <= WEIGHT_MAX => Ok(rate),
        _ => Err(RejectReason::BadRate),
    }
}

fn timestamp(digits: &[u8]) -> Result<i64, RejectReason> {
    let time = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    time.filter(|time| (1..=TIME_MAX).contains(time)).ok_or(RejectReason::BadTimestamp)
}
